// Gradients of a 3x3 convolution that is followed by a 2x2 max-pool and relu. At most one in four of its output
// gradients is not zero, and of those relu and dropout kill more than half, so both passes walk the live ones only:
// the sums are the same, without the terms that are zero.
#include "lib/backend/cpu/kernels/live_list.h"
#include "lib/backend/cpu/kernels/tables.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kTaps = 9;
constexpr int kCorners = 4;             // of a pooled window
constexpr int kVecs = kBlock / kWidth;  // vectors that hold a block

std::int64_t pixels_of(const PooledConv& g) { return g.height / 2 * (g.width / 2); }

/// For each pooled pixel, the offset of its window's first pixel in the padded image.
void window_offsets(const PooledConv& g, std::int32_t* offsets) {
  const std::int64_t pitch = g.width + 2;
  for (std::int64_t p = 0; p < g.height / 2; ++p)
    for (std::int64_t q = 0; q < g.width / 2; ++q)
      *offsets++ = static_cast<std::int32_t>((2 * p * pitch + 2 * q) * kBlock);
}

/// The live gradients of one output channel in one row, with the places of their patches in the padded image.
std::int32_t collect_channel(const PooledConv& g, const float* dy, const std::uint8_t* index,
                             const std::int32_t* offsets, const LiveList& list) {
  const std::int64_t pixels = pixels_of(g);
  const auto line = static_cast<std::int32_t>((g.width + 2) * kBlock);
  std::int32_t count = 0;
  std::int64_t at = 0;
  for (; at + kBlock <= pixels; at += kBlock) {
    const Block::Ints corner = Block::load_bytes(index + at);
    Block::Ints places;
    std::memcpy(&places, offsets + at, sizeof places);
    places += (corner >> 1) * line + (corner & 1) * kBlock;
    count = append(list, count, places, Block::load(dy + at) * g.scale, corner != kDead);
  }
  for (; at < pixels; ++at) {
    const std::int32_t corner = index[at];
    list.places[count] = offsets[at] + (corner >> 1) * line + (corner & 1) * kBlock;
    list.values[count] = dy[at] * g.scale;
    count += corner != kDead;
  }
  return count;
}

/// dw (kTaps, in_channels) at channels of kPlanes blocks, plus the sum over the list of value * image.
template <int kPlanes>
void add_list(const LiveList& list, std::int32_t count, const float* image, std::int64_t plane, std::int64_t pitch,
              float* dw, std::int64_t in_channels) {
  Vec total[kPlanes][kTaps];
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) total[b][t] = load(dw + t * in_channels + b * kWidth);
  for (std::int32_t i = 0; i < count; ++i) {
    const Vec value = broadcast(list.values[i]);
    const float* const corner = image + list.places[i];
    for (int b = 0; b < kPlanes; ++b)
      for (int t = 0; t < kTaps; ++t)
        total[b][t] = fma(value, load(corner + b * plane + (t / 3 * pitch + t % 3) * kBlock), total[b][t]);
  }
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) store(dw + t * in_channels + b * kWidth, total[b][t]);
}

/// Adds value * weights to the 4x4 patch of input pixels under one pooled window, for one corner of the window.
template <int kRow, int kColumn>
[[gnu::always_inline]] inline void add_corner(const LiveList& list, std::int32_t count, const float* w,
                                              Vec (&patch)[16]) {
  for (std::int32_t i = 0; i < count; ++i) {
    const Vec value = broadcast(list.values[i]);
    const float* const taps = w + list.places[i] * kTaps * kBlock;
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel = fma(value, load(taps + t * kBlock), pixel);
    }
  }
}

/// Lists of the live output channels of some pooled pixels: one for each corner of their windows.
struct CornerLists {
  std::int64_t room;  // of a list
  std::int32_t* counts;
  std::int32_t* places;
  float* values;

  static std::int64_t bytes(std::int64_t pixels, std::int64_t channels) {
    return pixels * kCorners * (4 + LiveList::room(channels) * 8);
  }
  CornerLists(void* memory, std::int64_t pixels, std::int64_t channels)
      : room(LiveList::room(channels)),
        counts(static_cast<std::int32_t*>(memory)),
        places(counts + pixels * kCorners),
        values(reinterpret_cast<float*>(places + pixels * kCorners * room)) {}
  LiveList list(std::int64_t pixel, int corner) const {
    const std::int64_t at = (pixel * kCorners + corner) * room;
    return {places + at, values + at};
  }
  std::int32_t& count(std::int64_t pixel, int corner) const { return counts[pixel * kCorners + corner]; }
};

/// Sorts the gradients of pooled pixels [begin, end) by pixel and corner, in the order of channels; dy and index are
/// blocked.
void collect_corners(const PooledConv& g, const float* dy, const std::uint8_t* index, std::int64_t begin,
                     std::int64_t end, const CornerLists& lists) {
  Block::Ints first = {};
  for (int lane = 0; lane < kBlock; ++lane) first[lane] = lane;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::int32_t counts[kCorners] = {};
    for (std::int64_t k = 0; k < g.out_channels; k += kBlock) {
      const std::int64_t at = (k / kBlock * pixels_of(g) + pixel) * kBlock;
      const Block::Ints corner = Block::load_bytes(index + at), channels = first + static_cast<std::int32_t>(k);
      const Block::Floats values = Block::load(dy + at) * g.scale;
      for (int c = 0; c < kCorners; ++c)
        counts[c] = append(lists.list(pixel - begin, c), counts[c], channels, values, corner == c);
    }
    for (int c = 0; c < kCorners; ++c) lists.count(pixel - begin, c) = counts[c];
  }
}

/// How many lines of pooled pixels are sorted at a time: as many as stay in the cache.
std::int64_t lines_at_once(const PooledConv& g) {
  constexpr std::int64_t kBytes = 256 * 1024;
  const std::int64_t lines = kBytes / CornerLists::bytes(g.width / 2, g.out_channels);
  return lines < 1 ? 1 : (lines > g.height / 2 ? g.height / 2 : lines);
}

/// Pooled gradients and their indexes in another layout than the caller's, in memory that follows `used` bytes.
struct Turned {
  float* dy;
  std::uint8_t* index;

  static std::int64_t bytes(std::int64_t outputs) { return outputs * 5; }
  Turned(void* scratch, std::int64_t used, std::int64_t outputs)
      : dy(reinterpret_cast<float*>(static_cast<char*>(scratch) + used)),
        index(reinterpret_cast<std::uint8_t*>(dy + outputs)) {}
};

}  // namespace

// Offsets and one list for the weights, or lists of corners for the data; then the turned gradients of a row.
std::int64_t live_scratch_bytes(const PooledConv& g) {
  const std::int64_t weights = pixels_of(g) * 4 + LiveList::room(pixels_of(g)) * 8;
  const std::int64_t data = CornerLists::bytes(lines_at_once(g) * (g.width / 2), g.out_channels);
  return (data > weights ? data : weights) + Turned::bytes(g.out_channels * pixels_of(g));
}

void live_backward_weights(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                           std::int64_t rows, float* dw, float* db, void* scratch) {
  const std::int64_t pixels = pixels_of(g), pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  auto* const offsets = static_cast<std::int32_t*>(scratch);
  const std::int64_t room = LiveList::room(pixels);
  const LiveList list = {offsets + pixels, reinterpret_cast<float*>(offsets + pixels + room)};
  const Turned plain(scratch, (pixels + 2 * room) * 4, g.out_channels * pixels);
  window_offsets(g, offsets);
  const std::int64_t image = g.in_channels / kBlock * plane;
  const std::int64_t outputs = g.out_channels * pixels;
  for (std::int64_t i = 0; i < g.out_channels * kTaps * g.in_channels; ++i) dw[i] = 0;
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = 0;
  // Row by row, so that the row's image stays in the first cache while all output channels walk over it.
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* row_dy = dy + row * outputs;
    const std::uint8_t* row_index = index + row * outputs;
    if (g.blocked_output) {
      for (std::int64_t at = 0; at < outputs; at += pixels * kBlock) {
        unblock(row_dy + at, plain.dy + at, pixels, kBlock);
        unblock_bytes(row_index + at, plain.index + at, pixels, kBlock);
      }
      row_dy = plain.dy;
      row_index = plain.index;
    }
    for (std::int64_t k = 0; k < g.out_channels; ++k) {
      const std::int32_t count = collect_channel(g, row_dy + k * pixels, row_index + k * pixels, offsets, list);
      for (std::int32_t i = 0; i < count; ++i) db[k] += list.values[i];
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
  const std::int64_t group = lines_at_once(g) * pooled_width, pixels = pixels_of(g);
  const CornerLists lists(scratch, group, g.out_channels);
  if (!g.blocked_output) {
    const Turned blocked(scratch, CornerLists::bytes(group, g.out_channels), g.out_channels * pixels);
    for (std::int64_t at = 0; at < g.out_channels * pixels; at += pixels * kBlock) {
      block(dy + at, blocked.dy + at, pixels, kBlock);
      block_bytes(index + at, blocked.index + at, pixels, kBlock);
    }
    dy = blocked.dy;
    index = blocked.index;
  }
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
