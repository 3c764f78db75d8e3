// What stands around cuBLAS: biases, their gradients, and operands in bfloat16.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kSumRows = 8;

__global__ void __launch_bounds__(kThreads)
    add_row_bias_kernel(float* __restrict__ y, const float* __restrict__ bias, std::int64_t count, int columns) {
  const std::int64_t i = thread_in_grid();
  if (i < count) y[i] += bias[i % columns];
}

/// A block of 32 columns by 8 rows for every 32 columns; each thread adds every 8th row, then the first row of
/// threads adds what the others have.
__global__ void __launch_bounds__(kWarp* kSumRows)
    sum_rows_kernel(const float* __restrict__ dy, float* __restrict__ db, std::int64_t rows, int columns) {
  __shared__ float part[kSumRows][kWarp];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float total = 0;
  if (column < columns)
    for (std::int64_t row = group; row < rows; row += kSumRows) total += dy[row * columns + column];
  part[group][lane] = total;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  for (int i = 1; i < kSumRows; ++i) total += part[i][lane];
  db[column] = total;
}

__global__ void __launch_bounds__(kThreads)
    to_bfloat16_kernel(const float* __restrict__ x, __nv_bfloat16* __restrict__ y, std::int64_t count) {
  const std::int64_t i = thread_in_grid();
  if (i < count) y[i] = __float2bfloat16(x[i]);
}

__global__ void __launch_bounds__(kThreads)
    round_to_bfloat16_kernel(const float* __restrict__ x, float* __restrict__ y, std::int64_t count) {
  const std::int64_t i = thread_in_grid();
  if (i < count) y[i] = __bfloat162float(__float2bfloat16(x[i]));
}

}  // namespace

void add_row_bias(float* y, const float* bias, std::int64_t rows, int columns, cudaStream_t stream) {
  const std::int64_t count = rows * columns;
  if (count == 0) return;
  launch(add_row_bias_kernel, blocks_for(count), dim3(kThreads), 0, stream, y, bias, count, columns);
}

void sum_rows(const float* dy, float* db, std::int64_t rows, int columns, cudaStream_t stream) {
  if (columns == 0) return;
  launch(sum_rows_kernel, blocks_of(columns, kWarp), dim3(kWarp * kSumRows), 0, stream, dy, db, rows, columns);
}

void to_bfloat16(const float* x, std::uint16_t* y, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  launch(to_bfloat16_kernel, blocks_for(count), dim3(kThreads), 0, stream, x, reinterpret_cast<__nv_bfloat16*>(y),
         count);
}

void round_to_bfloat16(const float* x, float* y, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  launch(round_to_bfloat16_kernel, blocks_for(count), dim3(kThreads), 0, stream, x, y, count);
}

}  // namespace duet::cuda::kernels
