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
    gather_images_kernel(LaunchRows batch, LabelledRows rows, const std::int64_t* indices, unsigned row_bytes,
                         float mean, float deviation, float* y, std::int64_t* picked) {
  const unsigned i = thread_in_launch(), at_row = i / row_bytes, pixel = i - at_row * row_bytes;
  if (i >= batch.threads) return;
  const std::int64_t row = batch.first + at_row, index = indices[row];
  const std::uint8_t byte = rows.bytes[index * rows.row_bytes + pixel];
  y[row * row_bytes + pixel] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  if (pixel == 0 && picked != nullptr) picked[row] = rows.labels[index];
}

}  // namespace

void gather_images(const LabelledRows& rows, const std::int64_t* indices, std::int64_t n, float mean, float deviation,
                   float* y, std::int64_t* picked, cudaStream_t stream) {
  launch_rows(gather_images_kernel, n, rows.row_bytes, kThreads, stream, rows, indices,
              static_cast<unsigned>(rows.row_bytes), mean, deviation, y, picked);
}

}  // namespace duet::cuda::kernels
