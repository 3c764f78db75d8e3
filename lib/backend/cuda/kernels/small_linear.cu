// Linear layers of few outputs, as a classifier's last one: cuBLAS and the kernels around it would be six launches,
// each of which takes longer to start than to run.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/precision.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kRowThreads = 128, kRowsPerBlock = kRowThreads / kWarp;
constexpr int kFew = 16;  // outputs of the smaller of two versions of each kernel
// Of the backward for few outputs, and for more: the warps' sums take 32 KiB of shared memory in both.
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
      DUET_UNROLL
      for (int o = 0; o < kMost; ++o)
        if (o < g.out) sum[o] = fmaf(value, operand<kRounds>(w[o * g.in + i]), sum[o]);
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

}  // namespace duet::cuda::kernels
