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
    const Block::Ints corner = load_places(index + at);
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
[[gnu::always_inline]] inline void add_corner(const LiveList& list, std::int32_t begin, std::int32_t end,
                                              const float* w, Vec (&patch)[16]) {
  for (std::int32_t i = begin; i < end; ++i) {
    const Vec value = broadcast(list.values[i]);
    const float* const taps = w + list.places[i];
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel = fma(value, load(taps + t * kBlock), pixel);
    }
  }
}

/// The live gradients of a row, sorted by pooled pixel and corner of its window, in the order of channels; a place is
/// where the channel's weights begin.
struct CornerLists {
  LiveList list;
  std::int32_t* ends;  // kCorners per pixel
};

/// dy and index are blocked.
void collect_corners(const PooledConv& g, const float* dy, const std::uint8_t* index, const CornerLists& lists) {
  Block::Ints first = {};
  for (int lane = 0; lane < kBlock; ++lane) first[lane] = lane * kTaps * kBlock;
  std::int32_t count = 0;
  for (std::int64_t pixel = 0; pixel < pixels_of(g); ++pixel) {
    for (int c = 0; c < kCorners; ++c) {
      for (std::int64_t k = 0; k < g.out_channels; k += kBlock) {
        const std::int64_t at = (k / kBlock * pixels_of(g) + pixel) * kBlock;
        const auto weights = static_cast<std::int32_t>(k * kTaps * kBlock);
        count =
            append(lists.list, count, first + weights, Block::load(dy + at) * g.scale, load_places(index + at) == c);
      }
      lists.ends[pixel * kCorners + c] = count;
    }
  }
}

/// Parts of the scratch memory, each of whole cache lines.
struct Scratch {
  Scratch(const PooledConv& g, void* memory) : next(static_cast<float*>(memory)) {
    const std::int64_t outputs = g.out_channels * pixels_of(g);
    image = take(g.in_channels * (g.height + 2) * (g.width + 2));
    turned_dy = take(outputs);
    turned_index = reinterpret_cast<std::uint8_t*>(take(outputs / 4));
    offsets = reinterpret_cast<std::int32_t*>(take(pixels_of(g)));
    corners.ends = reinterpret_cast<std::int32_t*>(take(pixels_of(g) * kCorners));
    corners.list.places = reinterpret_cast<std::int32_t*>(take(LiveList::room(outputs)));
    corners.list.values = take(LiveList::room(outputs));
    bytes = (next - static_cast<float*>(memory)) * 4;
  }
  float* take(std::int64_t count) {
    float* const part = next;
    next += (count + 15) / 16 * 16;
    return part;
  }
  float* image;  // x, then dx, with a border
  float* turned_dy;
  std::uint8_t* turned_index;
  std::int32_t* offsets;  // see window_offsets()
  CornerLists corners;
  std::int64_t bytes;
  float* next;
};

/// Gradients and indexes of a row as they are wanted: turned if they lie in the other layout.
struct Pooled {
  Pooled(const PooledConv& g, const float* row_dy, const std::uint8_t* row_index, bool blocked, const Scratch& s)
      : dy(row_dy), index(row_index) {
    if (g.blocked_output == blocked) return;
    const std::int64_t pixels = pixels_of(g);
    for (std::int64_t at = 0; at < g.out_channels * pixels; at += pixels * kBlock) {
      (blocked ? block : unblock)(row_dy + at, s.turned_dy + at, pixels, kBlock);
      (blocked ? block_bytes : unblock_bytes)(row_index + at, s.turned_index + at, pixels, kBlock);
    }
    dy = s.turned_dy;
    index = s.turned_index;
  }
  const float* dy;
  const std::uint8_t* index;
};

/// Adds one row to dw and db; its padded image is in the scratch memory.
void add_weights(const PooledConv& g, const Pooled& plain, float* dw, float* db, const Scratch& s) {
  const std::int64_t pixels = pixels_of(g), pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    const LiveList& list = s.corners.list;
    const std::int32_t count = collect_channel(g, plain.dy + k * pixels, plain.index + k * pixels, s.offsets, list);
    for (std::int32_t i = 0; i < count; ++i) db[k] += list.values[i];
    float* const to = dw + k * kTaps * g.in_channels;
    std::int64_t c = 0;
    if constexpr (kVecs == 1 && kRegisters == 32)
      for (; c + 2 * kBlock <= g.in_channels; c += 2 * kBlock)
        add_list<2>(list, count, s.image + c / kBlock * plane, plane, pitch, to + c, g.in_channels);
    for (; c < g.in_channels; c += kWidth)
      add_list<1>(list, count, s.image + c / kBlock * plane + c % kBlock, plane, pitch, to + c, g.in_channels);
  }
}

/// The padded dx of one row, in the scratch memory.
void sum_data(const PooledConv& g, const Pooled& blocked, const float* w, const Scratch& s) {
  const std::int64_t pooled_width = g.width / 2, pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const auto& [list, ends] = s.corners;
  collect_corners(g, blocked.dy, blocked.index, s.corners);
  for (std::int64_t i = 0; i < g.in_channels / kBlock * plane; i += kWidth) store(s.image + i, Vec{});
  // Input channels outside, so that one block's weights stay in the first cache.
  for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
    const float* const from = w + c / kBlock * g.out_channels * kTaps * kBlock + c % kBlock;
    std::int32_t begin = 0;
    for (std::int64_t pixel = 0; pixel < pixels_of(g); ++pixel) {
      const std::int32_t* const end = ends + pixel * kCorners;
      Vec patch[16] = {};
      add_corner<0, 0>(list, begin, end[0], from, patch);
      add_corner<0, 1>(list, end[0], end[1], from, patch);
      add_corner<1, 0>(list, end[1], end[2], from, patch);
      add_corner<1, 1>(list, end[2], end[3], from, patch);
      begin = end[3];
      float* const to = s.image + c / kBlock * plane + c % kBlock +
                        (2 * (pixel / pooled_width) * pitch + 2 * (pixel % pooled_width)) * kBlock;
      for (int k = 0; k < 16; ++k) {
        float* const place = to + (k / 4 * pitch + k % 4) * kBlock;
        store(place, load(place) + patch[k]);
      }
    }
  }
}

}  // namespace

std::int64_t live_scratch_bytes(const PooledConv& g) { return Scratch(g, nullptr).bytes; }

// Row by row: the row's image and gradients stay in the first caches while all channels walk over them.
void live_backward(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index, std::int64_t rows,
                   const float* w, float* dx, float* dw, float* db, void* scratch) {
  const Scratch s(g, scratch);
  const std::int64_t image = g.in_channels * g.height * g.width, outputs = g.out_channels * pixels_of(g);
  const std::int64_t planes = g.in_channels / kBlock;
  window_offsets(g, s.offsets);
  for (std::int64_t i = 0; i < g.out_channels * kTaps * g.in_channels; ++i) dw[i] = 0;
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const row_dy = dy + row * outputs;
    const std::uint8_t* const row_index = index + row * outputs;
    pad(x + row * image, s.image, planes, g.height, g.width, kBlock);
    add_weights(g, Pooled(g, row_dy, row_index, false, s), dw, db, s);
    if (dx == nullptr) continue;
    sum_data(g, Pooled(g, row_dy, row_index, true, s), w, s);
    crop(s.image, dx + row * image, planes, g.height, g.width, kBlock);
  }
}

}  // namespace duet::cpu::DUET_ISA
