// Gradients that are not zero, as bits of words.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {

inline constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channels of a block of an image
inline constexpr int kWordBits = 64;
inline constexpr std::uint64_t kAllLanes = (std::uint64_t{1} << kBlock) - 1;

using Block = Lanes<kBlock>;

/// Words that hold `count` bits.
inline std::int64_t words_of(std::int64_t count) { return (count + kWordBits - 1) / kWordBits; }

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

}  // namespace duet::cpu::DUET_ISA
