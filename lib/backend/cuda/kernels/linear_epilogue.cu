// Epilogues of cuBLAS: biases, relu and dropout, their gradients, and operands in bfloat16.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

using namespace arithmetic;

constexpr int kSumRows = 8;
constexpr int kChunk = kDropoutLanes * kDropoutNumbers;

__global__ void __launch_bounds__(kThreads)
    add_row_bias_kernel(LaunchRows rows, float* __restrict__ y, const float* __restrict__ bias, unsigned columns) {
  const unsigned i = thread_in_launch();
  if (i < rows.threads) y[rows.first * columns + i] += bias[i % columns];
}

/// A thread for each lane of each of dropout's chunks: eight elements of a row, 16 apart, interleaved with
/// its neighbours'.
__global__ void __launch_bounds__(kThreads)
    bias_relu_dropout_forward_kernel(LaunchRows rows, float* __restrict__ y, const float* __restrict__ bias,
                                     int columns, unsigned lanes, bool drops, StepDraw counted, float scale) {
  const unsigned i = thread_in_launch(), at_row = i / lanes, in_row = i - at_row * lanes;
  if (i >= rows.threads) return;
  const std::int64_t row = rows.first + at_row;
  const DropoutDraw draw = drops ? draw_now(counted) : DropoutDraw{};
  PhiloxWords words = {};
  if (drops) words = dropout_words(draw, row, in_row);
  y += row * columns;
  int e = static_cast<int>(in_row / kDropoutLanes * kChunk + in_row % kDropoutLanes);
  DUET_UNROLL
  for (int j = 0; j < kDropoutNumbers; ++j, e += kDropoutLanes) {
    if (e >= columns) return;
    float value = y[e];
    if (bias != nullptr) value += bias[e];
    if (relu_stops(value)) value = 0.0f;
    if (drops) value *= dropout_keeps(draw, words, j) ? scale : 0.0f;
    y[e] = value;
  }
}

/// A block of 32 columns by 8 rows for every 32 columns; each thread adds every 8th row, then the first row of
/// threads adds what the others have. kReluGradient: of dx, which is made in passing: dy * scale where y is positive or
/// NaN, else 0.
template <bool kReluGradient>
__global__ void __launch_bounds__(kWarp* kSumRows)
    sum_rows_kernel(const float* __restrict__ dy, const float* __restrict__ y, float scale, float* __restrict__ dx,
                    float* __restrict__ db, std::int64_t rows, int columns) {
  __shared__ float part[kSumRows][kWarp];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float total = 0;
  if (column < columns)
    for (std::int64_t row = group; row < rows; row += kSumRows) {
      const std::int64_t i = row * columns + column;
      float value = dy[i];
      if constexpr (kReluGradient) {
        value = relu_stops(y[i]) ? 0.0f : value * scale;
        dx[i] = value;
      }
      total += value;
    }
  part[group][lane] = total;
  __syncthreads();
  if (group != 0 || column >= columns || db == nullptr) return;
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
  launch_rows(add_row_bias_kernel, rows, columns, kThreads, stream, y, bias, static_cast<unsigned>(columns));
}

void sum_rows(const float* dy, float* db, std::int64_t rows, int columns, cudaStream_t stream) {
  if (columns == 0) return;
  launch(sum_rows_kernel<false>, blocks_of(columns, kWarp), dim3(kWarp * kSumRows), 0, stream, dy, nullptr, 1.0f,
         nullptr, db, rows, columns);
}

void bias_relu_dropout_forward(float* y, const float* bias, std::int64_t rows, int columns, const StepDraw* draw,
                               float scale, cudaStream_t stream) {
  const int lanes = (columns + kChunk - 1) / kChunk * kDropoutLanes;
  launch_rows(bias_relu_dropout_forward_kernel, rows, lanes, kThreads, stream, y, bias, columns,
              static_cast<unsigned>(lanes), draw != nullptr, draw == nullptr ? StepDraw{} : *draw, scale);
}

void bias_relu_dropout_backward(const float* dy, const float* y, float scale, float* dx, float* db, std::int64_t rows,
                                int columns, cudaStream_t stream) {
  if (columns == 0) return;
  launch(sum_rows_kernel<true>, blocks_of(columns, kWarp), dim3(kWarp * kSumRows), 0, stream, dy, y, scale, dx, db,
         rows, columns);
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
