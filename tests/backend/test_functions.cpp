// Functions of elements on CPU: the instruction sets' bits, and their errors.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

// What this file compares is inlined into it: no code of another instruction set can take its place.
#define DUET_ISA generic
#include "lib/backend/cpu/kernels/isa.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
bool same_number(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

/// Whether the vectors' fma of these numbers, among others, is std::fma.
bool is_fused(float a, float b, float c) {
  using namespace cpu::generic;
  float lanes[kWidth];
  store(lanes, exact_fma(Vec{1, a, 3, 4}, Vec{2, b, 5, 6}, Vec{1, c, 1, 1}));
  return same_number(lanes[1], std::fma(a, b, c)) && lanes[0] == 3 && lanes[2] == 16 && lanes[3] == 25;
}

}  // namespace

TEST_CASE("a vector's fused multiply-add without hardware for it rounds as std::fma does") {
  std::mt19937 generator(91);
  const auto any = [&] {
    const auto bits = static_cast<std::uint32_t>(generator());
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  };
  constexpr float kMax = std::numeric_limits<float>::max(), kTiny = std::numeric_limits<float>::min();
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const float odd[] = {0, -0.0f, 1, -1, 3, 1e-45f, -1e-45f, kTiny, -kTiny, kMax, -kMax, kInfinite, -kInfinite, NAN};
  int wrong = 0;
  for (const float a : odd)
    for (const float b : odd)
      for (const float c : odd) wrong += !is_fused(a, b, c);
  for (int i = 0; i < 200'000; ++i) {
    const float a = any(), b = any(), product = a * b;
    wrong += !is_fused(a, b, any());
    wrong += !is_fused(a, b, std::nextafter(-product, generator() % 2 ? 0.0f : kMax));  // the sum nearly vanishes
    // Products half-way between two floats, subnormal ones too, and a term that decides, far below double's last bit.
    const auto odd_number = [&] { return static_cast<float>(4097 + 2 * (generator() % 512)); };
    const int scale = static_cast<int>(generator() % 160) - 149, less = static_cast<int>(generator() % 120);
    const float sign = generator() % 2 ? 1.0f : -1.0f;
    wrong += !is_fused(std::ldexp(odd_number(), scale), odd_number(), sign * std::ldexp(1.0f, scale - less));
    wrong += !is_fused(odd_number(), std::ldexp(1.0f, -149 + less % 2), sign * std::ldexp(odd_number(), scale));
    wrong += !is_fused(std::ldexp(odd_number(), -80), std::ldexp(odd_number(), -81 + less % 8), sign * 1e-45f);
  }
  CHECK(wrong == 0);
}
