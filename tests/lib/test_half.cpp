#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lib/half.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
bool is_nan16(unsigned half, unsigned exponent) { return (half & 0x7FFFu) > exponent; }

}  // namespace

TEST_CASE("every 16-bit number survives the way to float and back") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (is_nan16(bits, 0x7C00u))
      wrong += !std::isnan(from_f16(half)) || !is_nan16(to_f16(from_f16(half)), 0x7C00u);
    else
      wrong += to_f16(from_f16(half)) != half;
    if (is_nan16(bits, 0x7F80u))
      wrong += !std::isnan(from_bf16(half)) || !is_nan16(to_bf16(from_bf16(half)), 0x7F80u);
    else
      wrong += to_bf16(from_bf16(half)) != half;
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats go to the nearer of two 16-bit numbers, and from the middle to the even one") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x7BFFu; ++bits) {  // pairs of finite neighbours
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const float middle = (from_f16(low) + from_f16(high)) / 2;  // exact
    const std::uint16_t even = bits % 2 == 0 ? low : high;
    wrong += to_f16(middle) != even || to_f16(-middle) != (even | 0x8000u);
    wrong += to_f16(std::nextafter(middle, 0.0f)) != low || to_f16(std::nextafter(middle, kInfinity)) != high;
    const float middle_b = std::bit_cast<float>(bits << 16 | 0x8000u);
    wrong += to_bf16(middle_b) != even;
    wrong += to_bf16(std::nextafter(middle_b, 0.0f)) != low || to_bf16(std::nextafter(middle_b, kInfinity)) != high;
  }
  CHECK(wrong == 0);
}

TEST_CASE("known 16-bit numbers, and where they end") {
  CHECK(to_f16(1.0f) == 0x3C00);
  CHECK(to_f16(-2.0f) == 0xC000);
  CHECK(to_f16(0.1f) == 0x2E66);
  CHECK(to_f16(65504.0f) == 0x7BFF);
  CHECK(to_f16(65519.0f) == 0x7BFF);
  CHECK(to_f16(65520.0f) == 0x7C00);
  CHECK(to_f16(kInfinity) == 0x7C00);
  CHECK(to_f16(0x1p-24f) == 0x0001);
  CHECK(to_f16(0x1p-26f) == 0x0000);
  CHECK(to_f16(-0.0f) == 0x8000);
  CHECK(to_bf16(1.0f) == 0x3F80);
  CHECK(to_bf16(0.1f) == 0x3DCD);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7F80);
}
