// Gradients of a 3x3 convolution that is followed by a 2x2 max-pool and relu. At most one in four of its output
// gradients is not zero, and of those relu and dropout zero more than half, so both passes walk the nonzero ones only:
// the sums are the same, without the terms that are zero.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channels of a block of an image
constexpr int kWordBits = 64;
constexpr std::uint64_t kAllLanes = (std::uint64_t{1} << kBlock) - 1;

using Block = Lanes<kBlock>;

/// Words that hold `count` bits.
std::int64_t words_of(std::int64_t count) { return (count + kWordBits - 1) / kWordBits; }

/// kBlock bytes as integers: where a block is one vector, by the instruction that the compiler does not find.
[[gnu::always_inline]] inline Block::Ints load_places(const std::uint8_t* p) {
#if defined(__AVX2__)
  return load_bytes(p);
#else
  return Block::load_bytes(p);
#endif
}

/// Bit i: whether lane i is b.
[[gnu::always_inline]] inline std::uint64_t equal(Block::Ints a, std::int32_t b) {
#if defined(__AVX512F__)
  return _mm512_cmpeq_epi32_mask((__m512i)a, _mm512_set1_epi32(b));
#elif defined(__AVX2__)
  return static_cast<std::uint64_t>(_mm256_movemask_ps((__m256)(a == b)));
#else
  std::uint64_t bits = 0;
  for (int lane = 0; lane < kBlock; ++lane) bits |= std::uint64_t{a[lane] == b} << lane;
  return bits;
#endif
}

constexpr int kTaps = 9;
constexpr int kCorners = 4;             // pixels of a pooled window
constexpr int kStreams = 3;             // arrays that are read row by row: image, gradients, index
constexpr int kVecs = kBlock / kWidth;  // vectors that hold a block

std::int64_t pixels_of(const PooledConv& g) { return g.height / 2 * (g.width / 2); }

/// For each pooled pixel, the offset of its window's first pixel in the padded image.
void window_offsets(const PooledConv& g, std::int32_t* offsets) {
  const std::int64_t pitch = g.width + 2;
  for (std::int64_t p = 0; p < g.height / 2; ++p)
    for (std::int64_t q = 0; q < g.width / 2; ++q)
      *offsets++ = static_cast<std::int32_t>((2 * p * pitch + 2 * q) * kBlock);
}

/// The gradients of one output channel in one row: bits of the nonzero ones, all values, zero where none passes and
/// behind the last, and the places of their patches in the padded image.
struct ChannelGradients {
  std::uint64_t* nonzero;
  float* values;
  std::int32_t* places;
};

void collect_channel(const PooledConv& g, const float* dy, const std::uint8_t* index, const std::int32_t* offsets,
                     const ChannelGradients& to) {
  const std::int64_t pixels = pixels_of(g);
  const auto line = static_cast<std::int32_t>((g.width + 2) * kBlock);
  const float scale = g.scale;
  std::int64_t at = 0;
  for (std::int64_t word = 0; word < words_of(pixels); ++word) to.nonzero[word] = 0;
  for (; at + kBlock <= pixels; at += kBlock) {
    const Block::Ints corner = load_places(index + at);
    Block::Ints places;
    std::memcpy(&places, offsets + at, sizeof places);
    places += (corner >> 1) * line + (corner & 1) * kBlock;
    std::memcpy(to.places + at, &places, sizeof places);
    Block::store(to.values + at, corner != kNoGradient ? Block::load(dy + at) * scale : Block::Floats{});
    to.nonzero[at / kWordBits] |= (~equal(corner, kNoGradient) & kAllLanes) << at % kWordBits;
  }
  for (; at < pixels; ++at) {
    const std::int32_t corner = index[at];
    to.places[at] = offsets[at] + (corner >> 1) * line + (corner & 1) * kBlock;
    to.values[at] = corner != kNoGradient ? dy[at] * scale : 0.0f;
    to.nonzero[at / kWordBits] |= std::uint64_t{corner != kNoGradient} << at % kWordBits;
  }
  store(to.values + pixels, Vec{});
}

/// dw (kTaps, in_channels) at channels of kPlanes blocks, plus the sum over the nonzero gradients of value * image.
template <int kPlanes>
void add_nonzero(const ChannelGradients& gradients, std::int64_t words, const float* image, std::int64_t plane,
                 std::int64_t pitch, float* dw, std::int64_t in_channels) {
  const std::int64_t line = pitch * kBlock;
  Vec total[kPlanes][kTaps];
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) total[b][t] = load(dw + t * in_channels + b * kWidth);
  for (std::int64_t word = 0; word < words; ++word)
    for (std::uint64_t nonzero = gradients.nonzero[word]; nonzero != 0; nonzero &= nonzero - 1) {
      const std::int64_t i = word * kWordBits + __builtin_ctzll(nonzero);
      const Vec value = broadcast(gradients.values[i]);
      const float* const corner = image + gradients.places[i];
      for (int b = 0; b < kPlanes; ++b)
        for (int r = 0; r < 3; ++r) {
          const float* const row = whole(corner + b * plane + r * line);
          for (int c = 0; c < 3; ++c) total[b][3 * r + c] = fma(value, load(row + c * kBlock), total[b][3 * r + c]);
        }
    }
  for (int b = 0; b < kPlanes; ++b)
    for (int t = 0; t < kTaps; ++t) store(dw + t * in_channels + b * kWidth, total[b][t]);
}

/// The gradients of a row by pooled pixel: all values in the order of channels, and for each corner of the windows bits
/// of the channels with a nonzero gradient there.
struct PixelGradients {
  float* values;
  std::uint64_t* nonzero[kCorners];
};

/// dy and index are blocked.
void collect_pixels(const PooledConv& g, const float* dy, const std::uint8_t* index, const PixelGradients& to) {
  const std::int64_t pixels = pixels_of(g), blocks = g.out_channels / kBlock, words = words_of(g.out_channels);
  const float scale = g.scale;
  float* values = to.values;
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
    for (std::int64_t word = 0, b = 0; word < words; ++word) {
      std::uint64_t nonzero[kCorners] = {};
      for (int bit = 0; bit < kWordBits && b < blocks; ++b, bit += kBlock, values += kBlock) {
        const std::int64_t at = (b * pixels + pixel) * kBlock;
        const Block::Ints corner = load_places(index + at);
        Block::store(values, Block::load(dy + at) * scale);
        for (int c = 0; c < kCorners; ++c) nonzero[c] |= equal(corner, c) << bit;
      }
      for (int c = 0; c < kCorners; ++c) to.nonzero[c][pixel * words + word] = nonzero[c];
    }
}

/// Adds value * weights to the 4x4 patch of input pixels under one pooled window, for up to 64 channels with a nonzero
/// gradient at one corner of the window.
template <int kRow, int kColumn>
[[gnu::always_inline]] inline void add_corner(std::uint64_t nonzero, const float* values, const float* w,
                                              Vec (&patch)[16]) {
  for (; nonzero != 0; nonzero &= nonzero - 1) {
    const std::int64_t channel = __builtin_ctzll(nonzero);
    const Vec value = broadcast(values[channel]);
    const float* const taps = whole(w + channel * kTaps * kBlock);
    for (int t = 0; t < kTaps; ++t) {
      Vec& pixel_sum = patch[(kRow + t / 3) * 4 + kColumn + t % 3];
      pixel_sum = fma(value, load(taps + t * kBlock), pixel_sum);
    }
  }
}

/// Parts of the scratch memory, each of whole cache lines. Without memory it says how many bytes they take.
struct Scratch {
  Scratch(const PooledConv& g, void* memory) : next(reinterpret_cast<std::uintptr_t>(memory)) {
    const std::uintptr_t begin = next;
    const std::int64_t outputs = g.out_channels * pixels_of(g);
    image = take(g.in_channels * (g.height + 2) * (g.width + 2));
    turned_dy = take(outputs);
    turned_index = reinterpret_cast<std::uint8_t*>(take(outputs / 4));
    offsets = reinterpret_cast<std::int32_t*>(take(pixels_of(g)));
    bias = take(g.out_channels * kWidth);
    channel.nonzero = take_words(words_of(pixels_of(g)));
    channel.values = take(pixels_of(g) + kWidth);
    channel.places = reinterpret_cast<std::int32_t*>(take(pixels_of(g)));
    pixel.values = take(outputs);
    for (std::uint64_t*& nonzero : pixel.nonzero) nonzero = take_words(pixels_of(g) * words_of(g.out_channels));
    bytes = static_cast<std::int64_t>(next - begin);
  }
  float* take(std::int64_t count) {
    float* const part = reinterpret_cast<float*>(next);
    next += static_cast<std::uintptr_t>((count + 15) / 16 * 16) * sizeof(float);
    return part;
  }
  std::uint64_t* take_words(std::int64_t count) { return reinterpret_cast<std::uint64_t*>(take(2 * count)); }
  float* image;  // x, then dx, with a border
  float* turned_dy;
  std::uint8_t* turned_index;
  std::int32_t* offsets;  // see window_offsets()
  float* bias;            // kWidth partial sums of db per channel
  ChannelGradients channel;
  PixelGradients pixel;
  std::int64_t bytes;
  std::uintptr_t next;
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

/// Adds one row to dw and the partial sums of db; its padded image is in the scratch memory.
void add_weights(const PooledConv& g, const Pooled& plain, float* dw, const Scratch& s, Ahead (&next)[kStreams]) {
  const std::int64_t pixels = pixels_of(g), pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const std::int64_t words = words_of(pixels);
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    for (Ahead& part : next) part.step();
    collect_channel(g, plain.dy + k * pixels, plain.index + k * pixels, s.offsets, s.channel);
    Vec bias = load(s.bias + k * kWidth);
    for (std::int64_t i = 0; i < pixels; i += kWidth) bias = bias + load(s.channel.values + i);
    store(s.bias + k * kWidth, bias);
    float* const to = dw + k * kTaps * g.in_channels;
    std::int64_t c = 0;
    if constexpr (kVecs == 1 && kRegisters == 32)
      for (; c + 2 * kBlock <= g.in_channels; c += 2 * kBlock)
        add_nonzero<2>(s.channel, words, s.image + c / kBlock * plane, plane, pitch, to + c, g.in_channels);
    for (; c < g.in_channels; c += kWidth)
      add_nonzero<1>(s.channel, words, s.image + c / kBlock * plane + c % kBlock, plane, pitch, to + c, g.in_channels);
  }
}

/// The padded dx of one row, in the scratch memory.
void sum_data(const PooledConv& g, const Pooled& blocked, const float* w, const Scratch& s, Ahead next) {
  const std::int64_t pitch = g.width + 2, plane = (g.height + 2) * pitch * kBlock;
  const std::int64_t words = words_of(g.out_channels);
  const auto& nonzero = s.pixel.nonzero;
  collect_pixels(g, blocked.dy, blocked.index, s.pixel);
  for (std::int64_t i = 0; i < g.in_channels / kBlock * plane; i += kWidth) store(s.image + i, Vec{});
  // Input channels outside, so that one block's weights stay in the first cache.
  for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
    const float* const from = w + c / kBlock * g.out_channels * kTaps * kBlock + c % kBlock;
    std::int64_t pixel = 0;
    for (std::int64_t p = 0; p < g.height / 2; ++p) {
      float* to = s.image + c / kBlock * plane + c % kBlock + 2 * p * pitch * kBlock;
      for (std::int64_t q = 0; q < g.width / 2; ++q, ++pixel, to += 2 * kBlock) {
        next.step();
        Vec patch[16] = {};
        for (std::int64_t word = 0; word < words; ++word) {
          const float* const values = s.pixel.values + pixel * g.out_channels + word * kWordBits;
          const float* const weights = from + word * kWordBits * kTaps * kBlock;
          add_corner<0, 0>(nonzero[0][pixel * words + word], values, weights, patch);
          add_corner<0, 1>(nonzero[1][pixel * words + word], values, weights, patch);
          add_corner<1, 0>(nonzero[2][pixel * words + word], values, weights, patch);
          add_corner<1, 1>(nonzero[3][pixel * words + word], values, weights, patch);
        }
        for (int k = 0; k < 16; ++k) {
          float* const place = to + (k / 4 * pitch + k % 4) * kBlock;
          store(place, load(place) + patch[k]);
        }
      }
    }
  }
}

}  // namespace

std::int64_t nonzero_scratch_bytes(const PooledConv& g) { return Scratch(g, nullptr).bytes; }

// Row by row: the row's image and gradients stay in the first caches while all channels walk over them.
void nonzero_backward(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                      std::int64_t rows, const float* w, float* dx, float* dw, float* db, void* scratch) {
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
    Ahead next[kStreams] = {Ahead(x + after * image, image * 4, steps), Ahead(dy + after * outputs, outputs * 4, steps),
                            Ahead(index + after * outputs, outputs, steps)};
    pad(x + row * image, s.image, planes, g.height, g.width, kBlock);
    add_weights(g, Pooled(g, row_dy, row_index, false, s), dw, s, next);
    if (dx == nullptr) continue;
    sum_data(g, Pooled(g, row_dy, row_index, true, s), w, s,
             Ahead(dx + row * image, image * 4, pixels_of(g) * g.in_channels / kWidth));
    crop(s.image, dx + row * image, planes, g.height, g.width, kBlock);
  }
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = sum(load(s.bias + k * kWidth));
}

}  // namespace duet::cpu::DUET_ISA
