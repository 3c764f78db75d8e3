// Batches of images from bytes that lie on the device.
#include <cuda_runtime.h>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// A thread for each pixel of the batch. Division and subtraction round as on the CPU: nothing here can be fused.
__global__ void __launch_bounds__(kThreads)
    gather_images_kernel(const std::uint8_t* rows, std::int64_t row_bytes, const std::int64_t* indices, std::int64_t n,
                         float mean, float deviation, float* y) {
  const std::int64_t i = thread_in_grid();
  if (i >= n * row_bytes) return;
  const std::int64_t row = i / row_bytes;
  const std::uint8_t byte = rows[indices[row] * row_bytes + (i - row * row_bytes)];
  y[i] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
}

}  // namespace

void gather_images(const std::uint8_t* rows, std::int64_t row_bytes, const std::int64_t* indices, std::int64_t n,
                   float mean, float deviation, float* y, cudaStream_t stream) {
  launch(gather_images_kernel, blocks_for(n * row_bytes), dim3(kThreads), 0, stream, rows, row_bytes, indices, n, mean,
         deviation, y);
}

}  // namespace duet::cuda::kernels
