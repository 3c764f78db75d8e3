// The counter on the device that holds the step number of a replayed graph.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__global__ void set_counter_kernel(std::uint64_t* counter, std::uint64_t value) { *counter = value; }

__global__ void advance_kernel(std::uint64_t* counter, std::uint64_t steps) { *counter += steps; }

}  // namespace

void set_counter(std::uint64_t* counter, std::uint64_t value, cudaStream_t stream) {
  launch(set_counter_kernel, dim3(1), dim3(1), 0, stream, counter, value);
}

void advance(std::uint64_t* counter, std::uint64_t steps, cudaStream_t stream) {
  launch(advance_kernel, dim3(1), dim3(1), 0, stream, counter, steps);
}

}  // namespace duet::cuda::kernels
