// The weight gradient of a convolution that reads a plain image of few channels: the first of a network. oneDNN 2.6
// has no vector code for one input channel where outputs lie in blocks of 8.
#include <cstdint>

#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // adjacent output channels
constexpr std::int64_t kTapsAtOnce = 9;           // accumulators that fit the registers

/// dw of kTaps taps from `tap` on, for the kWidth output channels at dy: the sum over all rows and pixels.
template <int kTaps>
void sum_taps(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, std::int64_t channel,
              std::int64_t tap, float* lanes) {
  Vec total[kTaps] = {};
  std::int64_t offset[kTaps];
  for (int t = 0; t < kTaps; ++t)
    offset[t] = (tap + t) / g.kernel_w * g.width + (tap + t) % g.kernel_w + channel * g.height * g.width;
  const std::int64_t pixels = g.out_height * g.out_width;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const image = x + row * g.in_channels * g.height * g.width;
    const float* const gradient = dy + row * g.out_channels * pixels;
    for (std::int64_t p = 0; p < g.out_height; ++p) {
      for (std::int64_t q = 0; q < g.out_width; ++q) {
        const Vec value = load(gradient + (p * g.out_width + q) * kBlock);
        const float* const corner = image + p * g.stride_h * g.width + q * g.stride_w;
        for (int t = 0; t < kTaps; ++t) total[t] = fma(value, broadcast(corner[offset[t]]), total[t]);
      }
    }
  }
  for (int t = 0; t < kTaps; ++t) store(lanes + t * kWidth, total[t]);
}

/// db of kWidth output channels.
void sum_pixels(const PlainConv& g, const float* dy, std::int64_t rows, float* db) {
  Vec total = {};
  const std::int64_t pixels = g.out_height * g.out_width;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < pixels; ++i) total = total + load(dy + (row * g.out_channels * pixels) + i * kBlock);
  store(db, total);
}

}  // namespace

void plain_backward_weights(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, float* dw,
                            float* db) {
  const std::int64_t taps = g.kernel_h * g.kernel_w, pixels = g.out_height * g.out_width;
  for (std::int64_t k = 0; k < g.out_channels; k += kWidth) {
    const float* const from = dy + k / kBlock * pixels * kBlock + k % kBlock;
    sum_pixels(g, from, rows, db + k);
    for (std::int64_t c = 0; c < g.in_channels; ++c) {
      for (std::int64_t tap = 0; tap < taps;) {
        float lanes[kTapsAtOnce * kWidth];
        const std::int64_t count = taps - tap >= kTapsAtOnce ? kTapsAtOnce : 1;
        if (count == kTapsAtOnce) {
          sum_taps<kTapsAtOnce>(g, x, from, rows, c, tap, lanes);
        } else {
          sum_taps<1>(g, x, from, rows, c, tap, lanes);
        }
        for (std::int64_t t = 0; t < count; ++t)
          for (int lane = 0; lane < kWidth; ++lane)
            dw[((k + lane) * g.in_channels + c) * taps + tap + t] = lanes[t * kWidth + lane];
        tap += count;
      }
    }
  }
}

}  // namespace duet::cpu::DUET_ISA
