// Images from the layouts of the CPU backend to pixels whose channels are adjacent, rounded to bf16, and back.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
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
