// The weight gradient of convolutions of small images with many channels: of a pair of blocks of channels it is
// computed for all rows and summed over the leaves while the cache holds it. The gradient is the largest tensor there.
#include <cstdint>

#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channel_block
constexpr int kVecs = kBlock / kWidth;
constexpr std::int64_t kTile = kBlock * kBlock;

/// Outputs [begin, end) of one dimension that read inside the image through tap `tap`.
struct Inside {
  Inside(std::int64_t size, std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t tap)
      : begin(tap < pad ? (pad - tap + stride - 1) / stride : 0),
        end(size + pad - tap <= 0 ? 0 : (size + pad - tap - 1) / stride + 1) {
    if (end > out) end = out;
  }
  std::int64_t begin, end;
};

/// to (input, output) = products of one block of inputs and one of outputs, through tap (r, t), summed over rows.
void sum_tap(const BlockedConv& g, const float* x, const float* dy, std::int64_t begin, std::int64_t end,
             std::int64_t r, std::int64_t t, float* to) {
  const Inside rows(g.height, g.out_height, g.stride_h, g.pad_h, r);
  const Inside columns(g.width, g.out_width, g.stride_w, g.pad_w, t);
  const std::int64_t step = g.stride_w * kBlock;
  Vec sums[kBlock][kVecs] = {};
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t p = rows.begin; p < rows.end; ++p) {
      const float* from =
          x + n * g.in_channels * g.height * g.width +
          ((p * g.stride_h + r - g.pad_h) * g.width + columns.begin * g.stride_w + t - g.pad_w) * kBlock;
      const float* d =
          dy + n * g.out_channels * g.out_height * g.out_width + (p * g.out_width + columns.begin) * kBlock;
      for (std::int64_t q = columns.begin; q < columns.end; ++q, from += step, d += kBlock)
        unroll<kVecs>([&](int v) {
          const Vec gradient = load(d + v * kWidth);
          unroll<kBlock>([&](int i) { sums[i][v] = fma(broadcast(from[i]), gradient, sums[i][v]); });
        });
    }
  unroll<kBlock>([&](int i) {
    for (int v = 0; v < kVecs; ++v) store(to + i * kBlock + v * kWidth, sums[i][v]);
  });
}

}  // namespace

std::int64_t small_weights_scratch_floats(const BlockedConv& g, const Leaves& leaves) {
  return leaves.count * g.kernel_h * g.kernel_w * kTile;
}

void small_backward_weights(const BlockedConv& g, const float* x, const float* dy, const Leaves& leaves,
                            std::int64_t out_block, float* dw, float* scratch) {
  const std::int64_t taps = g.kernel_h * g.kernel_w, tiles = taps * kTile;
  const float* const gradients = dy + out_block * kBlock * g.out_height * g.out_width;
  for (std::int64_t in_block = 0; in_block < g.in_channels / kBlock; ++in_block) {
    const float* const images = x + in_block * kBlock * g.height * g.width;
    for (int leaf = 0; leaf < leaves.count; ++leaf)
      for (std::int64_t tap = 0; tap < taps; ++tap)
        sum_tap(g, images, gradients, leaves.ranges[2 * leaf], leaves.ranges[2 * leaf + 1], tap / g.kernel_w,
                tap % g.kernel_w, scratch + leaf * tiles + tap * kTile);
    for (int i = 0; i < leaves.addition_count; ++i) {
      float* const to = scratch + leaves.additions[2 * i] * tiles;
      add(to, scratch + leaves.additions[2 * i + 1] * tiles, to, tiles);
    }
    for (std::int64_t out = 0; out < kBlock; ++out) {
      float* to = dw + ((out_block * kBlock + out) * g.in_channels + in_block * kBlock) * taps;
      for (std::int64_t in = 0; in < kBlock; ++in)
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const float sum = scratch[(tap * kBlock + in) * kBlock + out];
          *to++ = leaves.add_zero ? sum + 0.0f : sum;
        }
    }
  }
}

}  // namespace duet::cpu::DUET_ISA
