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
    count = append(list, count, places, Block::load(dy + at) * g.scale, unequal(corner, kDead));
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
  const std::int64_t line = pitch * kBlock;
  Vec total[kPlanes][kTaps];
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) total[b][t] = load(dw + t * in_channels + b * kWidth);
  for (std::int32_t i = 0; i < count; ++i) {
    const Vec value = broadcast(list.values[i]);
    const float* const corner = image + list.places[i];
    for (int b = 0; b < kPlanes; ++b)
      for (int r = 0; r < 3; ++r) {
        const float* const row = whole(corner + b * plane + r * line);
        for (int c = 0; c < 3; ++c) total[b][3 * r + c] = fma(value, load(row + c * kBlock), total[b][3 * r + c]);
      }
  }
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) store(dw + t * in_channels + b * kWidth, total[b][t]);
}

/// The live gradients of a row that belong to one corner of their windows, by pooled pixel and in the order of
/// channels; a place is where the channel's weights begin.
struct CornerList {
  LiveList list;
  std::int32_t* ends;  // of each pooled pixel
};

/// dy and index are blocked.
void collect_corners(const PooledConv& g, const float* dy, const std::uint8_t* index,
                     const CornerList (&corners)[kCorners]) {
  Block::Ints first = {};
  for (int lane = 0; lane < kBlock; ++lane) first[lane] = lane * kTaps * kBlock;
  const std::int64_t pixels = pixels_of(g), blocks = g.out_channels / kBlock;
  const float scale = g.scale;
  std::int32_t counts[kCorners] = {};
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    Block::Ints weights = first;
    for (std::int64_t b = 0; b < blocks; ++b, weights += kBlock * kTaps * kBlock) {
      const std::int64_t at = (b * pixels + pixel) * kBlock;
      const Block::Ints corner = load_places(index + at);
      const Block::Floats values = Block::load(dy + at) * scale;
      for (int c = 0; c < kCorners; ++c)
        counts[c] = append(corners[c].list, counts[c], weights, values, equal(corner, c));
    }
    for (int c = 0; c < kCorners; ++c) corners[c].ends[pixel] = counts[c];
  }
}

/// Adds value * weights to the 4x4 patch of input pixels under one pooled window, for one corner of the window. `begin`
/// is moved to the next pixel's entries.
template <int kRow, int kColumn>
[[gnu::always_inline]] inline void add_corner(const CornerList& corner, std::int32_t& begin, std::int64_t pixel,
                                              const float* w, Vec (&patch)[16]) {
  const std::int32_t end = corner.ends[pixel];
  for (std::int32_t i = begin; i < end; ++i) {
    const Vec value = broadcast(corner.list.values[i]);
    const float* const taps = whole(w + corner.list.places[i]);
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel_sum = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel_sum = fma(value, load(taps + t * kBlock), pixel_sum);
    }
  }
  begin = end;
}

/// Parts of the scratch memory, each of whole cache lines.
struct Scratch {
  Scratch(const PooledConv& g, void* memory) : next(static_cast<float*>(memory)) {
    const std::int64_t outputs = g.out_channels * pixels_of(g);
    image = take(g.in_channels * (g.height + 2) * (g.width + 2));
    turned_dy = take(outputs);
    turned_index = reinterpret_cast<std::uint8_t*>(take(outputs / 4));
    offsets = reinterpret_cast<std::int32_t*>(take(pixels_of(g)));
    bias = take(g.out_channels * kWidth);
    for (CornerList& corner : corners) {
      corner.ends = reinterpret_cast<std::int32_t*>(take(pixels_of(g)));
      corner.list.places = reinterpret_cast<std::int32_t*>(take(LiveList::room(outputs)));
      corner.list.values = take(LiveList::room(outputs));
    }
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
  float* bias;            // kWidth partial sums of db per channel
  CornerList corners[kCorners];
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

/// What the next row will read and write.
struct NextRow {
  void step() {
    for (Ahead& part : parts) part.step();
  }
  Ahead parts[4];
};

/// Adds one row to dw and the partial sums of db; its padded image is in the scratch memory.
void add_weights(const PooledConv& g, const Pooled& plain, float* dw, const Scratch& s, NextRow& next) {
  const std::int64_t pixels = pixels_of(g), pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    next.step();
    const LiveList& list = s.corners[0].list;  // free until the data gradient
    const std::int32_t count = collect_channel(g, plain.dy + k * pixels, plain.index + k * pixels, s.offsets, list);
    store(list.values + count, Vec{});
    Vec bias = load(s.bias + k * kWidth);
    for (std::int32_t i = 0; i < count; i += kWidth) bias = bias + load(list.values + i);
    store(s.bias + k * kWidth, bias);
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
  const std::int64_t pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const CornerList(&corners)[kCorners] = s.corners;
  collect_corners(g, blocked.dy, blocked.index, s.corners);
  for (std::int64_t i = 0; i < g.in_channels / kBlock * plane; i += kWidth) store(s.image + i, Vec{});
  // Input channels outside, so that one block's weights stay in the first cache.
  for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
    const float* const from = w + c / kBlock * g.out_channels * kTaps * kBlock + c % kBlock;
    std::int32_t begins[kCorners] = {};
    std::int64_t pixel = 0;
    for (std::int64_t p = 0; p < g.height / 2; ++p) {
      float* to = s.image + c / kBlock * plane + c % kBlock + 2 * p * pitch * kBlock;
      for (std::int64_t q = 0; q < g.width / 2; ++q, ++pixel, to += 2 * kBlock) {
        Vec patch[16] = {};
        add_corner<0, 0>(corners[0], begins[0], pixel, from, patch);
        add_corner<0, 1>(corners[1], begins[1], pixel, from, patch);
        add_corner<1, 0>(corners[2], begins[2], pixel, from, patch);
        add_corner<1, 1>(corners[3], begins[3], pixel, from, patch);
        for (int k = 0; k < 16; ++k) {
          float* const place = to + (k / 4 * pitch + k % 4) * kBlock;
          store(place, load(place) + patch[k]);
        }
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
  for (std::int64_t i = 0; i < g.out_channels * kWidth; ++i) s.bias[i] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const row_dy = dy + row * outputs;
    const std::uint8_t* const row_index = index + row * outputs;
    const std::int64_t after = row + 1 < rows ? row + 1 : row, steps = g.out_channels;
    NextRow next = {{Ahead(x + after * image, image * 4, steps), Ahead(dy + after * outputs, outputs * 4, steps),
                     Ahead(index + after * outputs, outputs, steps),
                     Ahead(dx == nullptr ? x : dx + after * image, dx == nullptr ? 0 : image * 4, steps)}};
    pad(x + row * image, s.image, planes, g.height, g.width, kBlock);
    add_weights(g, Pooled(g, row_dy, row_index, false, s), dw, s, next);
    if (dx == nullptr) continue;
    sum_data(g, Pooled(g, row_dy, row_index, true, s), w, s);
    crop(s.image, dx + row * image, planes, g.height, g.width, kBlock);
  }
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = sum(load(s.bias + k * kWidth));
}

}  // namespace duet::cpu::DUET_ISA
