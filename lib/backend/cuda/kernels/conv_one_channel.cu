// The convolution of images of one channel with 3x3 filters, fused with bias, 2x2 pooling and relu, and its gradients.
// A library would make a matrix product with nine columns of it, and write an image of every filter.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

using namespace arithmetic;

constexpr int kSide = 3, kTaps = kSide * kSide;
constexpr int kSums = kTaps + 1;   // sums for a channel: the gradients of its filter and of its bias
constexpr int kPatch = kSide + 1;  // the pixels under the four places of a window
constexpr int kGroup = 8;          // channels of one thread: they share the pixels that it loads
constexpr int kSumThreads = 256, kSumWarps = kSumThreads / kWarp;
constexpr int kMostParts = 64;

__device__ inline bool inside(int h, int w, const OneChannelConv& g) {
  return h >= 0 && h < g.height && w >= 0 && w < g.width;
}

/// A thread for each window of each row and each group of channels.
template <bool kRounds>
__global__ void __launch_bounds__(kThreads)
    conv_one_channel_forward_kernel(const float* __restrict__ x, const float* __restrict__ filters,
                                    const float* __restrict__ bias, float* __restrict__ y,
                                    std::uint8_t* __restrict__ index, OneChannelConv g) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x, pixels = static_cast<unsigned>(g.out_height * g.out_width),
                 row = i / pixels;
  if (row >= static_cast<unsigned>(g.rows)) return;
  const int pixel = static_cast<int>(i - row * pixels), p = pixel / g.out_width, q = pixel - p * g.out_width;
  const float* const image = x + static_cast<std::int64_t>(row) * g.height * g.width;
  float patch[kPatch][kPatch];
  DUET_UNROLL
  for (int r = 0; r < kPatch; ++r) DUET_UNROLL
  for (int s = 0; s < kPatch; ++s) {
    const int h = 2 * p + r - g.pad_h, w = 2 * q + s - g.pad_w;
    patch[r][s] = inside(h, w, g) ? operand<kRounds>(image[h * g.width + w]) : 0.0f;
  }
  const int first = static_cast<int>(blockIdx.y) * kGroup,
            end = first + kGroup < g.channels ? first + kGroup : g.channels;
  for (int channel = first; channel < end; ++channel) {
    const float* const filter = filters + channel * kTaps;
    float value[2][2] = {};
    DUET_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      const float weight = operand<kRounds>(filter[tap]);
      DUET_UNROLL
      for (int place = 0; place < 4; ++place) {
        float& sum = value[place / 2][place % 2];
        sum = fmaf(weight, patch[tap / kSide + place / 2][tap % kSide + place % 2], sum);
      }
    }
    const float b = bias[channel];
    float best = value[0][0] + b;
    int place = 0;
    look_at(value[0][1] + b, 1, best, place);
    look_at(value[1][0] + b, 2, best, place);
    look_at(value[1][1] + b, 3, best, place);
    const bool stops = relu_stops(best);
    const std::int64_t at = (static_cast<std::int64_t>(row) * g.channels + channel) * pixels + pixel;
    y[at] = stops ? 0.0f : best;
    index[at] = stops ? kNoGradient : static_cast<std::uint8_t>(place);
  }
}

/// Block (c, i) adds up channel c over the i-th part of the rows, a warp for each row in turn. partials: (parts,
/// channels, kSums).
template <bool kRounds>
__global__ void __launch_bounds__(kSumThreads)
    conv_one_channel_partials_kernel(const float* __restrict__ dy, const std::uint8_t* __restrict__ index,
                                     const float* __restrict__ x, float* __restrict__ partials, OneChannelConv g,
                                     int rows_of_part) {
  __shared__ float part[kSums][kSumThreads];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, channel = static_cast<int>(blockIdx.x);
  const int pixels = g.out_height * g.out_width, begin = static_cast<int>(blockIdx.y) * rows_of_part,
            end = begin + rows_of_part < g.rows ? begin + rows_of_part : g.rows;
  float sum[kSums] = {};
  for (int row = begin + warp; row < end; row += kSumWarps) {
    const std::int64_t at = (static_cast<std::int64_t>(row) * g.channels + channel) * pixels;
    const float* const image = x + static_cast<std::int64_t>(row) * g.height * g.width;
    for (int pixel = lane; pixel < pixels; pixel += kWarp) {
      // No branch around the loads, so that none waits for another.
      const float gradient = dy[at + pixel];
      const int place = index[at + pixel];
      const bool passes = place != kNoGradient;
      const int p = pixel / g.out_width, q = pixel - p * g.out_width;
      const int h = 2 * p + place / 2 - g.pad_h, w = 2 * q + place % 2 - g.pad_w;
      const float factor = operand<kRounds>(gradient);
      sum[kTaps] += passes ? gradient : 0.0f;
      float under[kTaps];
      bool there[kTaps];
      DUET_UNROLL
      for (int tap = 0; tap < kTaps; ++tap) {
        const int down = h + tap / kSide, right = w + tap % kSide;
        there[tap] = passes && inside(down, right, g);
        under[tap] = there[tap] ? image[down * g.width + right] : 0.0f;
      }
      DUET_UNROLL
      for (int tap = 0; tap < kTaps; ++tap) {
        const float next = fmaf(factor, operand<kRounds>(under[tap]), sum[tap]);
        sum[tap] = there[tap] ? next : sum[tap];
      }
    }
  }
  DUET_UNROLL
  for (int i = 0; i < kSums; ++i) part[i][threadIdx.x] = sum[i];
  __syncthreads();
  for (int i = warp; i < kSums; i += kSumWarps) {
    float total = 0;
    for (int thread = lane; thread < kSumThreads; thread += kWarp) total += part[i][thread];
    total = warp_sum(total);
    if (lane == 0) partials[(static_cast<int>(blockIdx.y) * g.channels + channel) * kSums + i] = total;
  }
}

/// A thread for each sum of each channel.
__global__ void __launch_bounds__(kThreads)
    conv_one_channel_sums_kernel(const float* __restrict__ partials, int parts, int channels, float* __restrict__ dw,
                                 float* __restrict__ db) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), count = channels * kSums;
  if (i >= count) return;
  float total = 0;
  for (int part = 0; part < parts; ++part) total += partials[part * count + i];
  const int channel = i / kSums, sum = i - channel * kSums;
  if (sum < kTaps) {
    dw[channel * kTaps + sum] = total;
  } else if (db != nullptr) {
    db[channel] = total;
  }
}

/// A row for each warp of a block, more where there would be too many parts.
int rows_of_part(const OneChannelConv& g) { return std::max(kSumWarps, (g.rows + kMostParts - 1) / kMostParts); }
int parts_of(const OneChannelConv& g) { return (g.rows + rows_of_part(g) - 1) / rows_of_part(g); }

}  // namespace

void conv_one_channel_forward(const float* x, const float* w, const float* bias, float* y, std::uint8_t* index,
                              const OneChannelConv& g, cudaStream_t stream) {
  const std::int64_t windows = static_cast<std::int64_t>(g.rows) * g.out_height * g.out_width;
  dim3 blocks = blocks_for(windows);
  blocks.y = blocks_of(g.channels, kGroup).x;
  const auto kernel = g.rounds ? conv_one_channel_forward_kernel<true> : conv_one_channel_forward_kernel<false>;
  launch(kernel, blocks, dim3(kThreads), 0, stream, x, w, bias, y, index, g);
}

std::int64_t conv_one_channel_partials(const OneChannelConv& g) {
  return static_cast<std::int64_t>(parts_of(g)) * g.channels * kSums;
}

void conv_one_channel_backward(const float* dy, const std::uint8_t* index, const float* x, float* partials, float* dw,
                               float* db, const OneChannelConv& g, cudaStream_t stream) {
  const int parts = parts_of(g);
  const auto kernel = g.rounds ? conv_one_channel_partials_kernel<true> : conv_one_channel_partials_kernel<false>;
  launch(kernel, dim3(static_cast<unsigned>(g.channels), static_cast<unsigned>(parts)), dim3(kSumThreads), 0, stream,
         dy, index, x, partials, g, rows_of_part(g));
  launch(conv_one_channel_sums_kernel, blocks_for(std::int64_t{g.channels} * kSums), dim3(kThreads), 0, stream,
         partials, parts, g.channels, dw, db);
}

}  // namespace duet::cuda::kernels
