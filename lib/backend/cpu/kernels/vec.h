// A vector of floats as wide as the instruction set that this file is compiled for.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef DUET_ISA
#error "compile this once per instruction set, with DUET_ISA set to its name"
#endif

namespace duet::cpu::DUET_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
inline constexpr int kRegisters = 16;
#else
inline constexpr int kWidth = 4;
inline constexpr int kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(kWidth * sizeof(float))));

[[gnu::always_inline]] inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
[[gnu::always_inline]] inline Vec broadcast(float x) { return Vec{} + x; }
/// a * b + c, fused where the machine can: these files, and only these, are compiled with contraction on.
[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
/// The sum of all lanes, always in the same order.
[[gnu::always_inline]] inline float sum(Vec v) {
  float lanes[kWidth];
  std::memcpy(lanes, &v, sizeof v);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace duet::cpu::DUET_ISA
