// Functions of elements on CPU: the instruction sets' bits, and their errors.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

// What this file compares is inlined into it: no code of another instruction set can take its place.
#define DUET_ISA generic
#include "lib/backend/cpu/kernels/isa.h"
#include "tests/backend/bits.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

bool same_number(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

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
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(generator())); };
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

namespace {

double at_least(double x, double least) { return x < least ? least : x; }
double cross_entropy(double x) { return -at_least(std::log1p(-x), -100) - 0 * at_least(std::log(x), -100); }
double softplus(double x) { return at_least(x, 0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return x / 2 * std::erfc(-x * std::sqrt(0.5)); }
double slope(double x) { return std::erfc(-x * std::sqrt(0.5)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

}  // namespace

TEST_CASE("functions of elements are accurate over all floats, on every instruction set") {
  struct Case {
    Pointwise f;
    double (*exact)(double);
    double ulps, absolute;
  };
  // Of b = 0 and c = 1. Below -88.7, 1 + e^-x is infinite.
  const Case cases[] = {{Pointwise::exp, std::exp, 1, 0},
                        {Pointwise::log, std::log, 1, 0},
                        {Pointwise::sqrt, std::sqrt, 0.5, 0},
                        {Pointwise::tanh, std::tanh, 1.5, 0},
                        {Pointwise::sigmoid, sigmoid, 2.5, 1e-38},
                        {Pointwise::cross_entropy, cross_entropy, 4, 0},
                        {Pointwise::logit_cross_entropy, softplus, 4, 4e-6},
                        {Pointwise::gelu, gelu, 1, 5e-7},
                        {Pointwise::gelu_gradient, slope, 1, 5e-7}};
  std::vector<float> x(1u << 18);
  for (std::uint32_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<float>(i << 14 | (i & 0x3fff));
  const std::vector<float> zeros(16, 0), ones(16, 1);
  for (const Case& c : cases)
    for (const cpu::Kernels* const set : instruction_sets()) {
      std::vector<float> y(x.size());
      set->pointwise(c.f, {{x.data(), false}, {zeros.data(), true}, {ones.data(), true}}, y.data(), std::ssize(y));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double exact = c.exact(double{x[i]}), error = std::abs(double{y[i]} - exact);
        const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact) - 23, -149));
        const bool close = std::isfinite(exact) && exact != 0 && error <= std::max(c.ulps * ulp, c.absolute);
        if (!close && !same_number(y[i], static_cast<float>(exact))) wrong = i;
      }
      CAPTURE(static_cast<int>(c.f), set->name, x[wrong], y[wrong]);
      CHECK(wrong == 0);
    }
}

TEST_CASE("an element's bits depend neither on the instruction set nor on its place among others") {
  constexpr std::int64_t kCount = 67;
  std::mt19937 generator(92);
  float operands[3][kCount], expected[kCount], y[kCount];
  for (int f = 0; f < kPointwiseFunctions; ++f)
    for (int round = 0; round < 40; ++round) {
      for (auto& operand : operands)
        for (float& x : operand)  // any float, or one between -8 and 8
          x = round % 2 ? std::bit_cast<float>(static_cast<std::uint32_t>(generator()))
                        : std::ldexp(static_cast<float>(generator()), -28) - 8;
      const bool repeats[] = {round % 8 == 7, round % 8 == 3, round % 8 == 5};
      for (bool first = true; const cpu::Kernels* const set : instruction_sets())
        for (const std::int64_t n : {kCount, std::int64_t{1 + round}}) {
          float repeated[3][cpu::Operand::kRepeated];
          cpu::Operand from[3];
          for (int k = 0; k < 3; ++k) {
            std::fill_n(repeated[k], cpu::Operand::kRepeated, operands[k][0]);
            from[k] = {repeats[k] ? repeated[k] : operands[k], repeats[k]};
          }
          std::fill_n(y, kCount, 7.0f);
          set->pointwise(static_cast<Pointwise>(f), from, y, n);
          if (std::exchange(first, false)) std::copy_n(y, kCount, expected);
          const bool alike = std::equal(y, y + n, expected, same_number);
          CAPTURE(f, round, set->name, n);
          CHECK((alike && std::all_of(y + n, y + kCount, [](float rest) { return rest == 7; })));
        }
    }
}

TEST_CASE("softmax, layer norm and Adam give the same bits on every instruction set") {
  std::mt19937 generator(93);
  for (const std::int64_t n : {1, 5, 16, 33, 100}) {
    std::vector<float> x(static_cast<std::size_t>(3 * n));
    for (float& value : x) value = std::ldexp(static_cast<float>(generator()), -28) - 8;
    const std::vector<float> dy(x.rbegin(), x.rend());
    std::vector<float> expected;
    for (const cpu::Kernels* const set : instruction_sets()) {
      std::vector<float> results(static_cast<std::size_t>(15 * n));
      const auto at = [&](std::int64_t row) { return results.data() + row * n; };
      set->softmax(x.data(), at(0), 1, n);
      set->softmax_backward(at(0), dy.data(), at(1), 1, n);
      set->log_softmax(x.data(), at(2), 1, n);
      set->log_softmax_backward(at(2), dy.data(), at(3), 1, n);
      set->layer_norm(x.data(), dy.data(), x.data(), 1e-5f, at(4), 3, n);
      set->layer_norm_backward(x.data(), dy.data() + n, dy.data(), 1e-5f, at(7), at(10), at(11), 3, n);
      std::copy_n(x.data(), n, at(12));
      set->adam(at(12), dy.data(), at(13), at(14), n, {.decay = 0.1f, .take1 = 0.1f, .take2 = 0.01f, .step_size = 1});
      if (expected.empty()) expected = results;
      CAPTURE(n, set->name);
      CHECK(std::equal(results.begin(), results.end(), expected.begin(), same_number));
    }
  }
}
