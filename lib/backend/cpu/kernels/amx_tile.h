// Products of floats by the tiles of AMX, which multiply bf16 numbers and add in float: a float is the sum of three
// bf16 numbers, to the last of its 24 bits, and of the nine products of two such sums the six largest are taken. What
// is left out is below 2^-23 of a product, so results are as exact as by multiplications of floats. Tiles take numbers
// below 2^-126 for zero, here a part of a number or of a sum: what is below 2^-100 loses bits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/isa.h"
#include "lib/backend/cpu/kernels/kernels.h"

namespace duet::cpu::DUET_ISA {

DUET_AMX_KERNELS(DUET_DECLARE_KERNEL)

constexpr int kParts = 3;                   // bf16 numbers that sum to a float
constexpr int kTileRows = 16;               // at most
constexpr int kTileWords = 16;              // words of a tile's row: floats, or pairs of bf16 numbers
constexpr int kTileDepth = 2 * kTileWords;  // terms of a sum that one product of tiles adds
constexpr int kRowBytes = 4 * kTileWords;
constexpr int kPart = kTileRows * kTileWords;

/// Pairs of bf16 numbers, or bits of floats.
typedef std::uint32_t Words __attribute__((vector_size(kWidth * sizeof(float))));

/// Splits a and b into three parts: pairs of the first at `to`, of the second at to + pitch, of the third behind it.
/// The first part is cut off, not rounded: the largest floats would become infinite. The second is rounded, so that the
/// third is of either sign and what the products leave out cancels. A number that is not finite has a part that is not.
[[gnu::always_inline]] inline void split(Vec a, Vec b, std::uint32_t* to, std::int64_t pitch) {
  const Words upper = Words{} + 0xFFFF0000u, half = Words{} + 0x8000u;
  const Words a1 = (Words)a & upper, b1 = (Words)b & upper;
  const Vec a_rest = a - (Vec)a1, b_rest = b - (Vec)b1;
  const Words a2 = ((Words)a_rest + half) & upper, b2 = ((Words)b_rest + half) & upper;
  const Words a3 = (Words)(a_rest - (Vec)a2), b3 = (Words)(b_rest - (Vec)b2);
  const Words pairs[kParts] = {a1 >> 16 | b1, a2 >> 16 | b2, a3 >> 16 | (b3 & upper)};
  for (int part = 0; part < kParts; ++part) std::memcpy(to + part * pitch, &pairs[part], sizeof(Words));
}

/// The nearest bf16 number in the upper half of each lane, ties to even; what is below is left as it is. A NaN stays
/// one.
[[gnu::always_inline]] inline Words round_upper(Vec v) {
  const Words bits = (Words)v, not_a_number = (Words)(v != v);
  const Words rounded = bits + (Words{} + 0x7FFFu) + (bits >> 16 & (Words{} + 1u));
  return (rounded & ~not_a_number) | ((bits | (Words{} + 0x400000u)) & not_a_number);
}
/// Pairs of a's and b's numbers.
[[gnu::always_inline]] inline Words pair(Vec a, Vec b) {
  return round_upper(a) >> 16 | (round_upper(b) & (Words{} + 0xFFFF0000u));
}
[[gnu::always_inline]] inline void store(std::uint32_t* p, Words v) { std::memcpy(p, &v, sizeof v); }

/// Writes the transposed 16 x 16 words.
[[gnu::always_inline]] inline void store_turned(Words (&rows)[kTileRows], std::uint32_t* to) {
  riffle<4>(rows);
  for (int i = 0; i < kTileRows; ++i) store(to + i * kTileWords, rows[i]);
}

inline std::int64_t pixels_in(const BlockedConv& g) { return g.height * g.width; }
inline std::int64_t pixels_out(const BlockedConv& g) { return g.out_height * g.out_width; }
inline std::int64_t taps_of(const BlockedConv& g) { return g.kernel_h * g.kernel_w; }

/// While it lives, this thread's tiles have a shape: the first kRowTiles `rows` rows, the others kTileRows.
class Tiles {
 public:
  static constexpr int kRowTiles = 5;
  explicit Tiles(std::int64_t rows) {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shape;
    for (int tile = 0; tile < 8; ++tile) {
      shape.row_bytes[tile] = kRowBytes;
      shape.rows[tile] = static_cast<std::uint8_t>(tile < kRowTiles ? rows : kTileRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The compilers' own functions do not say that they read and write memory, and take no template parameter.
template <int kTile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
[[gnu::always_inline]] inline void clear_four_tiles() {
  clear_tile<0>();
  clear_tile<1>();
  clear_tile<2>();
  clear_tile<3>();
}
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* rows) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(ssize_t{kRowBytes}), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* rows, ssize_t pitch = kRowBytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(pitch), "i"(kTile) : "memory");
}
/// total += a * b.
template <int kTotal, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTotal), "i"(kA), "i"(kB));
}

/// large + small += a * b in floats, where tiles kB, kB + 1, kB + 2 hold b's parts and kA is used for those at `a`,
/// `pitch` words apart. Small products first; with a tile of their own they do not round what is large.
template <int kLarge, int kSmall, int kA, int kB>
[[gnu::always_inline]] inline void multiply_parts(const std::uint32_t* a, std::int64_t pitch) {
  load_tile<kA>(a + 2 * pitch);
  multiply_tiles<kSmall, kA, kB>();
  load_tile<kA>(a + pitch);
  multiply_tiles<kSmall, kA, kB + 1>();
  multiply_tiles<kSmall, kA, kB>();
  load_tile<kA>(a);
  multiply_tiles<kSmall, kA, kB + 2>();
  multiply_tiles<kSmall, kA, kB + 1>();
  multiply_tiles<kLarge, kA, kB>();
}

/// Loads b's parts, which follow each other.
template <int kB>
[[gnu::always_inline]] inline void load_parts(const std::uint32_t* b) {
  load_tile<kB>(b);
  load_tile<kB + 1>(b + kPart);
  load_tile<kB + 2>(b + 2 * kPart);
}

}  // namespace duet::cpu::DUET_ISA
