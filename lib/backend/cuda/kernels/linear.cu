// Linear layers of few outputs, as a classifier's last one: cuBLAS and the kernels around it would be six launches,
// each of which takes longer to start than to run. And what stands around cuBLAS in the others.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kRowThreads = 128, kRowsPerBlock = kRowThreads / kWarp;
constexpr int kFew = 16;  // outputs of the smaller of two versions of each kernel
// Threads per block of the backward for few outputs and for more; in both the warps' sums take 32 KiB of shared memory.
constexpr int kFewThreads = 512, kManyThreads = 256;

/// A warp for each row. Every lane adds up some of the inputs for all outputs, then lane o the lanes' sums of output o.
template <int kMost, bool kRounds>
__global__ void __launch_bounds__(kRowThreads)
    small_linear_forward_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                const float* __restrict__ bias, float* __restrict__ y, bool log_softmax,
                                SmallLinear g) {
  __shared__ float part[kRowsPerBlock][kMost][kWarp + 1];  // + 1: the lanes read different banks
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + warp;
  float sum[kMost] = {};
  if (row < g.rows)
    for (int i = lane; i < g.in; i += kWarp) {
      const float value = operand<kRounds>(x[row * g.in + i]);
      float weight[kMost];  // without conditions, so that no load waits for another
      DUET_UNROLL
      for (int o = 0; o < kMost; ++o) weight[o] = w[(o < g.out ? o : 0) * g.in + i];
      DUET_UNROLL
      for (int o = 0; o < kMost; ++o) sum[o] = fmaf(value, operand<kRounds>(weight[o]), sum[o]);
    }
  DUET_UNROLL
  for (int o = 0; o < kMost; ++o) part[warp][o][lane] = sum[o];
  __syncthreads();
  if (row >= g.rows) return;  // whole warps
  const bool live = lane < g.out;
  float value = -INFINITY;
  if (live) {
    value = 0;
    for (int i = 0; i < kWarp; ++i) value += part[warp][lane][i];
    if (bias != nullptr) value += bias[lane];
  }
  if (log_softmax) {  // with the bits of log_softmax_forward
    const float largest = warp_max(value), total = warp_sum(live ? expf(value - largest) : 0.0f);
    value = arithmetic::log_softmax(value, largest, logf(total));
  }
  if (live) y[row * g.out + lane] = value;
}

/// The first `tiles` blocks: dw of 32 inputs each; the bias is the weight of one more input, which is 1. Each of
/// kGroups warps adds up every kGroups-th row. The other blocks: a thread for each element of dx.
template <int kMost, int kBlockThreads, bool kRounds>
__global__ void __launch_bounds__(kBlockThreads)
    small_linear_backward_kernel(const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ w,
                                 float* __restrict__ dx, float* __restrict__ dw, float* __restrict__ db, SmallLinear g,
                                 int tiles) {
  constexpr int kGroups = kBlockThreads / kWarp;
  __shared__ float part[kGroups][kMost][kWarp];
  const int block = static_cast<int>(blockIdx.x) - tiles;
  if (block >= 0) {  // whole blocks
    // 32 bits hold them all: kMostSmallRows * kMostSmallWeights, see gemm.cpp.
    const unsigned i = static_cast<unsigned>(block) * kBlockThreads + threadIdx.x, in = static_cast<unsigned>(g.in);
    const std::int64_t row = i / in;
    if (row >= g.rows) return;
    const int column = static_cast<int>(i % in);
    float total = 0;
    for (int o = 0; o < g.out; ++o)
      total = fmaf(operand<kRounds>(dy[row * g.out + o]), operand<kRounds>(w[o * g.in + column]), total);
    dx[i] = total;
    return;
  }
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane;
  const bool is_bias = column == g.in;
  float sum[kMost] = {};
  if (column <= g.in)
    for (std::int64_t row = group; row < g.rows; row += kGroups) {
      const float value = is_bias ? 1.0f : operand<kRounds>(x[row * g.in + column]);
      DUET_UNROLL
      for (int o = 0; o < kMost; ++o) {
        if (o >= g.out) continue;
        const float gradient = dy[row * g.out + o];
        sum[o] = fmaf(is_bias ? gradient : operand<kRounds>(gradient), value, sum[o]);
      }
    }
  DUET_UNROLL
  for (int o = 0; o < kMost; ++o) part[group][o][lane] = sum[o];
  __syncthreads();
  if (column > g.in || (is_bias && db == nullptr)) return;
  for (int o = group; o < g.out; o += kGroups) {
    float total = 0;
    for (int i = 0; i < kGroups; ++i) total += part[i][o][lane];
    if (is_bias) {
      db[o] = total;
    } else {
      dw[o * g.in + column] = total;
    }
  }
}

}  // namespace

void small_linear_forward(const float* x, const float* w, const float* bias, float* y, bool log_softmax,
                          const SmallLinear& g, cudaStream_t stream) {
  const auto kernel =
      g.out <= kFew ? (g.rounds ? small_linear_forward_kernel<kFew, true> : small_linear_forward_kernel<kFew, false>)
                    : (g.rounds ? small_linear_forward_kernel<kWarp, true> : small_linear_forward_kernel<kWarp, false>);
  launch(kernel, blocks_of(g.rows, kRowsPerBlock), dim3(kRowThreads), 0, stream, x, w, bias, y, log_softmax, g);
}

void small_linear_backward(const float* dy, const float* x, const float* w, float* dx, float* dw, float* db,
                           const SmallLinear& g, cudaStream_t stream) {
  const bool few = g.out <= kFew;
  const auto kernel = few ? (g.rounds ? small_linear_backward_kernel<kFew, kFewThreads, true>
                                      : small_linear_backward_kernel<kFew, kFewThreads, false>)
                          : (g.rounds ? small_linear_backward_kernel<kWarp, kManyThreads, true>
                                      : small_linear_backward_kernel<kWarp, kManyThreads, false>);
  const unsigned tiles = dw == nullptr ? 0 : blocks_of(g.in + 1, kWarp).x;
  const unsigned others = dx == nullptr ? 0 : blocks_of(g.rows * g.in, few ? kFewThreads : kManyThreads).x;
  launch(kernel, dim3(tiles + others), dim3(few ? kFewThreads : kManyThreads), 0, stream, dy, x, w, dx, dw, db, g,
         static_cast<int>(tiles));
}

// Epilogues of cuBLAS: biases, relu and dropout, their gradients, and operands in bfloat16.

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
