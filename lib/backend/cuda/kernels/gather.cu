// Batches of images from bytes that lie on the device.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// A thread for each pixel of the batch. Division and subtraction round as on the CPU: nothing here can be fused.
__global__ void __launch_bounds__(kThreads)
    gather_images_kernel(LabelledRows rows, const std::int64_t* indices, std::int64_t n, float mean, float deviation,
                         float* y, std::int64_t* picked) {
  const std::int64_t i = thread_in_grid();
  if (i >= n * rows.row_bytes) return;
  const std::int64_t row = i / rows.row_bytes, index = indices[row], pixel = i - row * rows.row_bytes;
  const std::uint8_t byte = rows.bytes[index * rows.row_bytes + pixel];
  y[i] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  if (pixel == 0 && picked != nullptr) picked[row] = rows.labels[index];
}

}  // namespace

void gather_images(const LabelledRows& rows, const std::int64_t* indices, std::int64_t n, float mean, float deviation,
                   float* y, std::int64_t* picked, cudaStream_t stream) {
  launch(gather_images_kernel, blocks_for(n * rows.row_bytes), dim3(kThreads), 0, stream, rows, indices, n, mean,
         deviation, y, picked);
}

}  // namespace duet::cuda::kernels
