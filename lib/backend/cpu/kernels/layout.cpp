// Images from one layout to another: blocks of channels, borders of zeros, and pixels of bf16 numbers.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kGroup = 16;  // pixels turned at once

typedef std::uint8_t Bytes __attribute__((vector_size(16)));  // the same for every instruction set

constexpr int log2(int n) { return n == 1 ? 0 : 1 + log2(n / 2); }

/// kGroup pixels of kBlock channels: from (pixel, channel) to (channel, pixel) with channels `pixels` apart, or
/// back.
template <class V, int kBlock, bool kToBlocks, class T>
void turn_group(const T* x, T* y, std::int64_t pixels) {
  constexpr int kLanes = sizeof(V) / sizeof(T), kVecs = kGroup * kBlock / kLanes, kPerChannel = kGroup / kLanes;
  V v[kVecs];
  for (int i = 0; i < kVecs; ++i)
    std::memcpy(&v[i], x + (kToBlocks ? i / kPerChannel * pixels + i % kPerChannel * kLanes : i * kLanes), sizeof(V));
  riffle<kToBlocks ? log2(kBlock) : log2(kGroup)>(v);
  for (int i = 0; i < kVecs; ++i)
    std::memcpy(y + (kToBlocks ? i * kLanes : i / kPerChannel * pixels + i % kPerChannel * kLanes), &v[i], sizeof(V));
}

template <class V, int kBlock, bool kToBlocks, class T>
void turn(const T* x, T* y, std::int64_t pixels) {
  if (pixels < kGroup) {
    for (std::int64_t i = 0; i < pixels; ++i)
      for (int c = 0; c < kBlock; ++c)
        if constexpr (kToBlocks) {
          y[i * kBlock + c] = x[c * pixels + i];
        } else {
          y[c * pixels + i] = x[i * kBlock + c];
        }
    return;
  }
  for (std::int64_t i = 0; i < pixels; i += kGroup) {
    const std::int64_t at = i + kGroup <= pixels ? i : pixels - kGroup;  // the last group may overlap the one before
    turn_group<V, kBlock, kToBlocks>(x + at * (kToBlocks ? 1 : kBlock), y + at * (kToBlocks ? kBlock : 1), pixels);
  }
}

/// Copies `count` floats inline: memcpy would cost a call.
[[gnu::always_inline]] inline void copy(const float* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(to + i, load(from + i));
  if (i < count && count >= kWidth) {
    store(to + count - kWidth, load(from + count - kWidth));
  } else {
    for (; i < count; ++i) to[i] = from[i];
  }
}

[[gnu::always_inline]] inline void clear(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = 0;
}

}  // namespace

void unblock(const float* x, float* y, std::int64_t pixels, int block) {
  block == 16 ? turn<Vec, 16, false>(x, y, pixels) : turn<Vec, 8, false>(x, y, pixels);
}
void unblock_bytes(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block) {
  block == 16 ? turn<Bytes, 16, false>(x, y, pixels) : turn<Bytes, 8, false>(x, y, pixels);
}
void block(const float* x, float* y, std::int64_t pixels, int block) {
  block == 16 ? turn<Vec, 16, true>(x, y, pixels) : turn<Vec, 8, true>(x, y, pixels);
}
void block_bytes(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block) {
  block == 16 ? turn<Bytes, 16, true>(x, y, pixels) : turn<Bytes, 8, true>(x, y, pixels);
}

void block_weights(const float* w, float* to, std::int64_t outs, std::int64_t ins, std::int64_t taps, int block,
                   bool outputs_last) {
  const std::int64_t row = ins * taps, out_step = outputs_last ? 1 : block, in_step = outputs_last ? block : 1;
  for (std::int64_t out = 0; out < outs; out += block)
    for (std::int64_t in = 0; in < ins; in += block)
      for (std::int64_t tap = 0; tap < taps; ++tap, to += block * block) {
        const float* const from = w + out * row + in * taps + tap;
        for (std::int64_t i = 0; i < block; ++i)
          for (std::int64_t o = 0; o < block; ++o) to[i * in_step + o * out_step] = from[o * row + i * taps];
      }
}

void pad(const float* x, float* padded, std::int64_t images, std::int64_t h, std::int64_t w, int block) {
  const std::int64_t pitch = (w + 2) * block;
  for (std::int64_t i = 0; i < images; ++i, padded += (h + 2) * pitch) {
    clear(padded, pitch);
    clear(padded + (h + 1) * pitch, pitch);
    for (std::int64_t row = 1; row <= h; ++row, x += w * block) {
      float* const line = padded + row * pitch;
      clear(line, block);
      copy(x, line + block, w * block);
      clear(line + pitch - block, block);
    }
  }
}

void crop(const float* padded, float* x, std::int64_t images, std::int64_t h, std::int64_t w, int block) {
  const std::int64_t pitch = (w + 2) * block;
  for (std::int64_t i = 0; i < images; ++i, padded += (h + 2) * pitch)
    for (std::int64_t row = 1; row <= h; ++row, x += w * block) copy(padded + row * pitch + block, x, w * block);
}

// Images from the layouts of the CPU backend to pixels whose channels are adjacent, rounded to bf16, and back.

namespace {

constexpr std::int64_t kNear = 32;  // pixels that are turned for all channels while the cache holds them

/// To the nearest bf16 number, ties to even. A NaN stays one.
[[gnu::always_inline]] inline std::uint16_t round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, kept = bits >> 16 | 0x40u;
  return static_cast<std::uint16_t>(x != x ? kept : rounded);
}

/// Calls move(place in blocks of channels, place in pixels) for each run of `block` channels of a pixel.
template <class Move>
[[gnu::always_inline]] inline void for_each_run(std::int64_t channels, std::int64_t pixels, int block, Move move) {
  for (std::int64_t first = 0; first < pixels; first += kNear) {
    const std::int64_t end = first + kNear < pixels ? first + kNear : pixels;
    for (std::int64_t c = 0; c < channels; c += block)
      for (std::int64_t pixel = first; pixel < end; ++pixel) move(c * pixels + pixel * block, pixel * channels + c);
  }
}

template <int kBlock>
void to_bf16(const float* x, std::uint16_t* y, std::int64_t channels, std::int64_t pixels) {
  for_each_run(channels, pixels, kBlock, [=](std::int64_t from, std::int64_t to) {
    for (int i = 0; i < kBlock; ++i) y[to + i] = round_to_bf16(x[from + i]);
  });
}

template <int kBlock>
void from_floats(const float* x, float* y, std::int64_t channels, std::int64_t pixels) {
  for_each_run(channels, pixels, kBlock, [=](std::int64_t to, std::int64_t from) {
    for (int i = 0; i < kBlock; ++i) y[to + i] = x[from + i];
  });
}

}  // namespace

void to_bf16_pixels(const float* x, std::uint16_t* y, std::int64_t channels, std::int64_t pixels, int block) {
  switch (block) {
    case 16: return to_bf16<16>(x, y, channels, pixels);
    case 8: return to_bf16<8>(x, y, channels, pixels);
    default: return to_bf16<1>(x, y, channels, pixels);
  }
}

void from_pixels(const float* x, float* y, std::int64_t channels, std::int64_t pixels, int block) {
  switch (block) {
    case 16: return from_floats<16>(x, y, channels, pixels);
    case 8: return from_floats<8>(x, y, channels, pixels);
    default: return from_floats<1>(x, y, channels, pixels);
  }
}

}  // namespace duet::cpu::DUET_ISA
