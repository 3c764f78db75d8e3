// Gradients of a 3x3 convolution that is followed by a 2x2 max-pool and relu. At most one in four of its output
// gradients is not zero, and of those relu and dropout kill more than half, so both passes walk the live ones only:
// the sums are the same, without the terms that are zero.
#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kTaps = 9;
constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channels of a block of the image
constexpr int kVecs = kBlock / kWidth;            // vectors that hold a block

struct LiveGradient {
  std::int32_t place;  // weights: offset into the padded images; data: output channel
  float value;
};

/// Place of (channel, pixel) in one row of pooled outputs.
std::int64_t pooled_at(const LiveConv& g, std::int64_t channel, std::int64_t pixel) {
  const std::int64_t pixels = g.height / 2 * (g.width / 2);
  if (!g.blocked_output) return channel * pixels + pixel;
  return (channel / kBlock * pixels + pixel) * kBlock + channel % kBlock;
}

/// The live gradients of one output channel in all rows; returns their number.
std::int64_t collect_channel(const LiveConv& g, const float* dy, const std::uint8_t* index, std::int64_t rows,
                             std::int64_t channel, LiveGradient* list) {
  const std::int64_t pooled_width = g.width / 2, pixels = g.height / 2 * pooled_width;
  const std::int64_t pitch = g.width + 2, image = g.in_channels * (g.height + 2) * pitch;
  const std::int64_t step = pooled_at(g, channel, 1) - pooled_at(g, channel, 0);
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t at = row * g.out_channels * pixels + pooled_at(g, channel, 0);
    for (std::int64_t p = 0; p < g.height / 2; ++p) {
      const std::int64_t top = row * image + 2 * p * pitch * kBlock;
      for (std::int64_t q = 0; q < pooled_width; ++q, at += step) {
        const std::int64_t corner = index[at];
        const std::int64_t offset = top + ((corner >> 1) * pitch + 2 * q + (corner & 1)) * kBlock;
        list[count] = {static_cast<std::int32_t>(offset), dy[at] * g.scale};
        count += corner != kDead;
      }
    }
  }
  return count;
}

/// dw (kTaps, in_channels) at channels of kPlanes blocks = sum over the list of value * image.
template <int kPlanes>
void sum_list(const LiveGradient* list, std::int64_t count, const float* image, std::int64_t plane, std::int64_t pitch,
              float* dw, std::int64_t in_channels) {
  Vec total[kPlanes][kTaps] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const Vec value = broadcast(list[i].value);
    const float* const corner = image + list[i].place;
    for (int b = 0; b < kPlanes; ++b)
      for (int t = 0; t < kTaps; ++t)
        total[b][t] = fma(value, load(corner + b * plane + (t / 3 * pitch + t % 3) * kBlock), total[b][t]);
  }
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) store(dw + t * in_channels + b * kWidth, total[b][t]);
}

/// Adds value * weights to the 4x4 patch of input pixels under one pooled window, for one corner of the window.
template <int kRow, int kColumn>
void add_corner(const LiveGradient* list, int count, const float* w, std::int64_t in_channels, Vec (&patch)[16]) {
  for (int i = 0; i < count; ++i) {
    const Vec value = broadcast(list[i].value);
    const float* const taps = w + list[i].place * kTaps * in_channels;
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel = fma(value, load(taps + t * in_channels), pixel);
    }
  }
}

}  // namespace

void live_backward_weights(const LiveConv& g, const float* x, const float* dy, const std::uint8_t* index,
                           std::int64_t rows, float* dw, float* db, void* scratch) {
  auto* const list = static_cast<LiveGradient*>(scratch);
  const std::int64_t pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    const std::int64_t count = collect_channel(g, dy, index, rows, k, list);
    float total = 0;
    for (std::int64_t i = 0; i < count; ++i) total += list[i].value;
    db[k] = total;
    float* const to = dw + k * kTaps * g.in_channels;
    std::int64_t c = 0;
    if constexpr (kVecs == 1 && kRegisters == 32)
      for (; c + 2 * kBlock <= g.in_channels; c += 2 * kBlock)
        sum_list<2>(list, count, x + c / kBlock * plane, plane, pitch, to + c, g.in_channels);
    for (; c < g.in_channels; c += kBlock)
      for (int v = 0; v < kVecs; ++v)
        sum_list<1>(list, count, x + c / kBlock * plane + v * kWidth, plane, pitch, to + c + v * kWidth, g.in_channels);
  }
}

void live_backward_data(const LiveConv& g, const float* w, const float* dy, const std::uint8_t* index, float* dx,
                        void* scratch) {
  const std::int64_t pooled_width = g.width / 2, pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  auto* const lists = static_cast<LiveGradient*>(scratch);  // one per corner, and one for the dead
  for (std::int64_t i = 0; i < g.in_channels / kBlock * plane; ++i) dx[i] = 0;
  for (std::int64_t pixel = 0; pixel < g.height / 2 * pooled_width; ++pixel) {
    int count[5] = {};
    for (std::int64_t k = 0; k < g.out_channels; ++k) {
      const std::int64_t at = pooled_at(g, k, pixel);
      const int corner = index[at] == kDead ? 4 : index[at];
      lists[corner * g.out_channels + count[corner]++] = {static_cast<std::int32_t>(k), dy[at] * g.scale};
    }
    for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
      Vec patch[16] = {};
      const float* const from = w + c;
      add_corner<0, 0>(lists, count[0], from, g.in_channels, patch);
      add_corner<0, 1>(lists + g.out_channels, count[1], from, g.in_channels, patch);
      add_corner<1, 0>(lists + 2 * g.out_channels, count[2], from, g.in_channels, patch);
      add_corner<1, 1>(lists + 3 * g.out_channels, count[3], from, g.in_channels, patch);
      float* const to = dx + c / kBlock * plane + c % kBlock +
                        (2 * (pixel / pooled_width) * pitch + 2 * (pixel % pooled_width)) * kBlock;
      for (int i = 0; i < 16; ++i) {
        float* const place = to + (i / 4 * pitch + i % 4) * kBlock;
        store(place, load(place) + patch[i]);
      }
    }
  }
}

}  // namespace duet::cpu::DUET_ISA
