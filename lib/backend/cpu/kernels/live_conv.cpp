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
  std::int32_t place;  // weights: offset into the padded image; data: output channel
  float value;
};

/// Place of (channel, pixel) in one row of pooled outputs.
std::int64_t pooled_at(const PooledConv& g, std::int64_t channel, std::int64_t pixel) {
  const std::int64_t pixels = g.height / 2 * (g.width / 2);
  if (!g.blocked_output) return channel * pixels + pixel;
  return (channel / kBlock * pixels + pixel) * kBlock + channel % kBlock;
}

/// The live gradients of one output channel in one row; returns their number.
std::int64_t collect_channel(const PooledConv& g, const float* dy, const std::uint8_t* index, std::int64_t channel,
                             LiveGradient* list) {
  const std::int64_t pooled_width = g.width / 2, pitch = g.width + 2;
  const std::int64_t step = pooled_at(g, channel, 1) - pooled_at(g, channel, 0);
  std::int64_t count = 0, at = pooled_at(g, channel, 0);
  for (std::int64_t p = 0; p < g.height / 2; ++p) {
    for (std::int64_t q = 0; q < pooled_width; ++q, at += step) {
      const std::int64_t corner = index[at];
      const std::int64_t offset = ((2 * p + (corner >> 1)) * pitch + 2 * q + (corner & 1)) * kBlock;
      list[count] = {static_cast<std::int32_t>(offset), dy[at] * g.scale};
      count += corner != kDead;
    }
  }
  return count;
}

/// dw (kTaps, in_channels) at channels of kPlanes blocks, plus the sum over the list of value * image.
template <int kPlanes>
void add_list(const LiveGradient* list, std::int64_t count, const float* image, std::int64_t plane, std::int64_t pitch,
              float* dw, std::int64_t in_channels) {
  Vec total[kPlanes][kTaps];
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) total[b][t] = load(dw + t * in_channels + b * kWidth);
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
[[gnu::always_inline]] inline void add_corner(const LiveGradient* list, int count, const float* w, Vec (&patch)[16]) {
  for (int i = 0; i < count; ++i) {
    const Vec value = broadcast(list[i].value);
    const float* const taps = w + list[i].place * kTaps * kBlock;
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel = fma(value, load(taps + t * kBlock), pixel);
    }
  }
}

/// Lists for the pooled pixels of some lines: for each pixel one per corner of its window, and one for the dead, each
/// with room for all output channels.
struct CornerLists {
  static constexpr int kLists = 5;
  LiveGradient* entries;
  std::int32_t* counts;
  std::int64_t channels;

  LiveGradient* list(std::int64_t pixel, int corner) { return entries + (pixel * kLists + corner) * channels; }
  std::int32_t& count(std::int64_t pixel, int corner) { return counts[pixel * kLists + corner]; }
};

/// Sorts the gradients of pooled pixels [begin, end) by pixel and corner, in the order of channels.
void collect_corners(const PooledConv& g, const float* dy, const std::uint8_t* index, std::int64_t begin,
                     std::int64_t end, CornerLists& lists) {
  for (std::int64_t i = 0; i < (end - begin) * CornerLists::kLists; ++i) lists.counts[i] = 0;
  const std::int64_t step = pooled_at(g, 0, 1) - pooled_at(g, 0, 0);
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    std::int64_t at = pooled_at(g, k, begin);
    for (std::int64_t pixel = 0; pixel < end - begin; ++pixel, at += step) {
      const int corner = index[at] == kDead ? 4 : index[at];
      lists.list(pixel, corner)[lists.count(pixel, corner)++] = {static_cast<std::int32_t>(k), dy[at] * g.scale};
    }
  }
}

/// How many lines of pooled pixels are sorted at a time: as many as stay in the cache.
std::int64_t lines_at_once(const PooledConv& g) {
  constexpr std::int64_t kBytes = 256 * 1024;
  const std::int64_t line = g.width / 2 * CornerLists::kLists * g.out_channels * std::int64_t{sizeof(LiveGradient)};
  const std::int64_t lines = kBytes / line;
  return lines < 1 ? 1 : (lines > g.height / 2 ? g.height / 2 : lines);
}

}  // namespace

std::int64_t live_scratch_bytes(const PooledConv& g) {
  const std::int64_t pixels = lines_at_once(g) * (g.width / 2);
  const std::int64_t corners = pixels * CornerLists::kLists;
  const std::int64_t data = corners * (g.out_channels * std::int64_t{sizeof(LiveGradient)} + 4);
  const std::int64_t weights = (g.height / 2 * (g.width / 2) + 1) * std::int64_t{sizeof(LiveGradient)};
  return data > weights ? data : weights;
}

void live_backward_weights(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                           std::int64_t rows, float* dw, float* db, void* scratch) {
  auto* const list = static_cast<LiveGradient*>(scratch);
  const std::int64_t pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const std::int64_t image = g.in_channels / kBlock * plane;
  const std::int64_t outputs = g.out_channels * (g.height / 2) * (g.width / 2);
  for (std::int64_t i = 0; i < g.out_channels * kTaps * g.in_channels; ++i) dw[i] = 0;
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = 0;
  // Row by row, so that the row's image stays in the first cache while all output channels walk over it.
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < g.out_channels; ++k) {
      const std::int64_t count = collect_channel(g, dy + row * outputs, index + row * outputs, k, list);
      for (std::int64_t i = 0; i < count; ++i) db[k] += list[i].value;
      float* const to = dw + k * kTaps * g.in_channels;
      const float* const from = x + row * image;
      std::int64_t c = 0;
      if constexpr (kVecs == 1 && kRegisters == 32)
        for (; c + 2 * kBlock <= g.in_channels; c += 2 * kBlock)
          add_list<2>(list, count, from + c / kBlock * plane, plane, pitch, to + c, g.in_channels);
      for (; c < g.in_channels; c += kBlock)
        for (int v = 0; v < kVecs; ++v)
          add_list<1>(list, count, from + c / kBlock * plane + v * kWidth, plane, pitch, to + c + v * kWidth,
                      g.in_channels);
    }
  }
}

void live_backward_data(const PooledConv& g, const float* w, const float* dy, const std::uint8_t* index, float* dx,
                        void* scratch) {
  const std::int64_t pooled_width = g.width / 2, pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const std::int64_t group = lines_at_once(g) * pooled_width, pixels = g.height / 2 * pooled_width;
  auto* const entries = static_cast<LiveGradient*>(scratch);
  CornerLists lists = {entries, reinterpret_cast<std::int32_t*>(entries + group * CornerLists::kLists * g.out_channels),
                       g.out_channels};
  for (std::int64_t i = 0; i < g.in_channels / kBlock * plane; ++i) dx[i] = 0;
  for (std::int64_t begin = 0; begin < pixels; begin += group) {
    const std::int64_t end = begin + group < pixels ? begin + group : pixels;
    collect_corners(g, dy, index, begin, end, lists);
    // Input channels outside, so that one block's weights stay in the first cache.
    for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
      const float* const from = w + c / kBlock * g.out_channels * kTaps * kBlock + c % kBlock;
      for (std::int64_t pixel = begin; pixel < end; ++pixel) {
        const std::int64_t i = pixel - begin;
        Vec patch[16] = {};
        add_corner<0, 0>(lists.list(i, 0), lists.count(i, 0), from, patch);
        add_corner<0, 1>(lists.list(i, 1), lists.count(i, 1), from, patch);
        add_corner<1, 0>(lists.list(i, 2), lists.count(i, 2), from, patch);
        add_corner<1, 1>(lists.list(i, 3), lists.count(i, 3), from, patch);
        float* const to = dx + c / kBlock * plane + c % kBlock +
                          (2 * (pixel / pooled_width) * pitch + 2 * (pixel % pooled_width)) * kBlock;
        for (int k = 0; k < 16; ++k) {
          float* const place = to + (k / 4 * pitch + k % 4) * kBlock;
          store(place, load(place) + patch[k]);
        }
      }
    }
  }
}

}  // namespace duet::cpu::DUET_ISA
