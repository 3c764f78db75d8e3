// 16-bit floating point numbers as bits: IEEE 754 binary16 and bfloat16, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace duet {

/// From 65,520 on, halfway from the largest number (65,504) to 2^16, it becomes infinite; NaN stays NaN.
constexpr std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 2^16 and more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal number, rounded, in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
  }
  const std::uint32_t even = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u + 0xFFFu + even) >> 13);
}

constexpr float from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 0x1Fu, fraction = half & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal, in units of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 0x1Fu ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

constexpr float from_bf16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

/// An element of DType::f16. Computed with as float, and rounded where one is made.
struct Float16 {
  std::uint16_t bits = 0;
  constexpr Float16() = default;
  constexpr explicit Float16(float value) : bits(to_f16(value)) {}
  constexpr operator float() const { return from_f16(bits); }  // NOLINT(google-explicit-constructor): exact
};

/// An element of DType::bf16, likewise.
struct BFloat16 {
  std::uint16_t bits = 0;
  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(to_bf16(value)) {}
  constexpr operator float() const { return from_bf16(bits); }  // NOLINT(google-explicit-constructor): exact
};

}  // namespace duet
