// Convolutions under Precision::bf16 on CPU: products of numbers rounded to bf16, sums in float.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/half.h"
#include "lib/ops/ops.h"
#include "tests/ops/check.h"
#include "tests/support/precision.h"

using namespace duet;
using namespace duet_test;

namespace {

Array rounded(Array x) {
  for (double& value : x.values) value = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
  return x;
}

}  // namespace

TEST_CASE("CPU devices refuse TF32") {
  CHECK_THROWS_WITH(backend(DeviceKind::cpu).set_precision(Precision::tf32),
                    ContainsSubstring("expected fp32 or bf16"));
}

TEST_CASE("under bf16 conv2d has the values and gradients of rounded numbers") {
  if (!machine_has_bf16()) DUET_SKIP("this machine has no instructions for bf16");
  struct Case {
    Shape x, w;
    Window2d window;
    bool plain_or_small = false;  // weight gradients may be of floats
  };
  Mt19937 generator(41);
  for (const Case& c : {Case{{9, 32, 12, 13}, {16, 32, 3, 3}, {3, 3, 1, 1, 1, 1}},
                        Case{{8, 16, 28, 28}, {32, 16, 1, 1}, {1, 1, 2, 2, 0, 0}},
                        Case{{10, 3, 20, 20}, {16, 3, 7, 7}, {7, 7, 2, 2, 3, 3}, true},
                        Case{{18, 64, 2, 2}, {32, 64, 3, 3}, {3, 3, 1, 1, 1, 1}, true},
                        Case{{35, 32, 5, 4}, {96, 32, 3, 3}, {3, 3, 2, 2, 1, 1}, true},
                        Case{{9, 32, 7, 7}, {64, 32, 1, 1}, {1, 1, 2, 2, 0, 0}, true},
                        Case{{2, 32, 24, 24}, {96, 32, 2, 1}, {2, 1, 1, 1, 1, 0}}})
    for (const bool with_bias : {true, false}) {
      CAPTURE(c.x.str(), c.w.str(), with_bias);
      const Array x = random_array(c.x, generator), w = random_array(c.w, generator);
      const Array b = with_bias ? random_array({c.w[0]}, generator) : Array();
      const Array y = reference::conv2d(rounded(x), rounded(w), b, c.window), dy = random_array(y.shape, generator);
      const WithCpuPrecision set(Precision::bf16);
      CHECK(backend(DeviceKind::cpu).precision() == Precision::bf16);
      const Variable vx = leaf(x), vw = leaf(w), vb = with_bias ? leaf(b) : Variable();
      const Variable vy = ops::conv2d(vx, vw, vb, c.window);
      CHECK(relative_error(vy.value(), y) < kTolerance);
      backward(vy, dy);
      const auto g = reference::conv2d_backward(rounded(x), rounded(w), rounded(dy), c.window);
      const bool floats = c.plain_or_small && relative_error(vw.grad(), g.w) > kTolerance;
      const auto of_weights = floats ? reference::conv2d_backward(x, w, dy, c.window) : g;
      CHECK(relative_error(vw.grad(), of_weights.w) < kTolerance);
      if (with_bias) CHECK(relative_error(vb.grad(), of_weights.b) < kTolerance);
    }
}

TEST_CASE("images are rounded to bf16 as single numbers are: ties to even, infinity and NaN stay") {
  const cpu::Kernels& kernels = cpu::kernels();
  // Every bf16 number with lower halves around the tie, in rows of the block's channels.
  const auto block = static_cast<std::size_t>(kernels.channel_block);
  std::vector<float> x;
  for (std::uint32_t high = 0; high <= 0xFFFF; ++high)
    for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x4000u, 0xC000u})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  std::vector<std::uint16_t> y(x.size());
  kernels.to_bf16_pixels(x.data(), y.data(), kernels.channel_block, static_cast<std::int64_t>(x.size() / block),
                         kernels.channel_block);
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    wrong += std::isnan(x[i]) ? !std::isnan(from_bf16(y[i])) : y[i] != to_bf16(x[i]);
  CHECK(wrong == 0);
}

TEST_CASE("under bf16 a convolution in blocks uses it, a plain one and a linear layer do not") {
  if (!machine_has_bf16()) DUET_SKIP("this machine has no instructions for bf16");
  Backend& cpu = backend(DeviceKind::cpu);
  CHECK(cpu.has_used_precision());
  const WithCpuPrecision set(Precision::bf16);
  CHECK_FALSE(cpu.has_used_precision());
  const Tensor x = zeros({2, 3, 5, 5});
  static_cast<void>(ops::conv2d(Variable(x), Variable(zeros({5, 3, 3, 3})), {}, {3, 3, 1, 1, 1, 1}));
  static_cast<void>(ops::linear(Variable(zeros({2, 16})), Variable(zeros({16, 16})), Variable(zeros({16}))));
  CHECK_FALSE(cpu.has_used_precision());
  static_cast<void>(ops::conv2d(Variable(x), Variable(zeros({16, 3, 3, 3})), {}, {3, 3, 1, 1, 1, 1}));
  CHECK(cpu.has_used_precision());
}

TEST_CASE("under bf16 numbers that are not finite stay in their row, and a NaN with all bits set stays one") {
  if (!machine_has_bf16()) DUET_SKIP("this machine has no instructions for bf16");
  constexpr std::int64_t kRows = 18, kChannels = 32;
  Mt19937 generator(43);
  Array x = random_array({kRows, kChannels, 2, 2}, generator);
  const Array w = random_array({kChannels, kChannels, 3, 3}, generator);
  const std::int64_t row_count = kChannels * 4;
  x.values[3 * row_count + 5] = std::bit_cast<float>(0x7FFFFFFFu);
  x.values[17 * row_count + 9] = std::numeric_limits<double>::infinity();
  const WithCpuPrecision set(Precision::bf16);
  const Variable vx = leaf(x), vw = leaf(w);
  const Variable vy = ops::conv2d(vx, vw, {}, {3, 3, 1, 1, 1, 1});
  const Tensor& y = vy.value();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    CAPTURE(i);
    const std::int64_t row = i / row_count;
    CHECK(std::isfinite(y.data<float>()[i]) == (row != 3 && row != 17));
    CHECK(std::isnan(y.data<float>()[i]) == (row == 3));
  }
}
