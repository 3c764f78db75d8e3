// Lists of gradients that are not zero, made a vector at a time.
#pragma once

#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {

inline constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channels of a block of an image

using Block = Lanes<kBlock>;

/// kBlock bytes as integers: where a block is one vector, by the instruction that the compiler does not find.
[[gnu::always_inline]] inline Block::Ints load_places(const std::uint8_t* p) {
#if defined(__AVX2__)
  return load_bytes(p);
#else
  return Block::load_bytes(p);
#endif
}

/// Entry i is values[i] at places[i]. append() writes up to kBlock entries past the end.
struct LiveList {
  std::int32_t* places;
  float* values;

  /// Memory for lists of up to `count` entries.
  static std::int64_t room(std::int64_t count) { return count + kBlock; }
};

/// Lanes of a block that a comparison chose.
#if defined(__AVX512F__)
using Chosen = __mmask16;
[[gnu::always_inline]] inline Chosen equal(Block::Ints a, std::int32_t b) {
  return _mm512_cmpeq_epi32_mask((__m512i)a, _mm512_set1_epi32(b));
}
[[gnu::always_inline]] inline Chosen unequal(Block::Ints a, std::int32_t b) {
  return _mm512_cmpneq_epi32_mask((__m512i)a, _mm512_set1_epi32(b));
}
#else
using Chosen = Block::Ints;
[[gnu::always_inline]] inline Chosen equal(Block::Ints a, std::int32_t b) { return a == b; }
[[gnu::always_inline]] inline Chosen unequal(Block::Ints a, std::int32_t b) { return a != b; }
#endif

/// Adds the chosen lanes after the first `count` entries; returns the new count.
[[gnu::always_inline]] inline std::int32_t append(const LiveList& list, std::int32_t count, Block::Ints places,
                                                  Block::Floats values, Chosen chosen) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(list.places + count, _mm512_maskz_compress_epi32(chosen, (__m512i)places));
  _mm512_storeu_ps(list.values + count, _mm512_maskz_compress_ps(chosen, (__m512)values));
  return count + __builtin_popcount(chosen);
#else
  for (int lane = 0; lane < kBlock; ++lane) {
    list.places[count] = places[lane];
    list.values[count] = values[lane];
    count += chosen[lane] != 0;
  }
  return count;
#endif
}

}  // namespace duet::cpu::DUET_ISA
