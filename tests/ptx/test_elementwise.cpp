#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

void relu_cases(std::int64_t n, int offset) {
  const std::size_t count = size_of(n);
  for (const bool in_place : {false, true}) {
    Case c("relu", {n, offset, in_place});
    const Floats x = c.odd("x", count, offset), y = in_place ? x : c.output("y", count, offset + 1);
    c.run([&] { kernels::relu(x.data(), y.data(), n, nullptr); });
    for (std::size_t i = 0; i < count; ++i) c.expect("y", i, y[i], x.first(i) <= 0 ? 0 : x.first(i), 0);
  }
  Case c("relu_backward", {n, offset});
  const Floats y = c.odd("y", count, offset), dy = c.odd("dy", count), dx = c.output("dx", count);
  c.run([&] { kernels::relu_backward(y.data(), dy.data(), dx.data(), n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) c.expect("dx", i, dx[i], y.first(i) <= 0 ? 0 : dy.first(i), 0);
}

void arithmetic_cases(std::int64_t n, int offset) {
  const std::size_t count = size_of(n);
  Case c("add", {n, offset});
  const Floats a = c.odd("a", count, offset), b = c.odd("b", count), sum = c.output("sum", count);
  c.run([&] { kernels::add(a.data(), b.data(), sum.data(), n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) c.expect("sum", i, sum[i], double{a.first(i)} + double{b.first(i)}, 1);

  Case scaled("scale", {n, offset});
  const Floats x = scaled.odd("x", count, offset);
  scaled.run([&] { kernels::scale(x.data(), 0.37f, n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) scaled.expect("x", i, x[i], x.first(i) * double{0.37f}, 1);

  Case filled("fill", {n, offset});
  const Floats y = filled.output("y", count, offset);
  filled.run([&] { kernels::fill(y.data(), 2.5f, n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) filled.expect("y", i, y[i], 2.5, 0);
}

void mask_cases(std::int64_t n, int offset) {
  const std::size_t count = size_of(n);
  Case c("mask_scale", {n, offset});
  const Floats x = c.normal("x", count, offset), y = c.output("y", count);
  const auto mask =
      c.input<std::uint8_t>("mask", count, offset, [&](std::size_t) { return static_cast<std::uint8_t>(c.below(2)); });
  c.run([&] { kernels::mask_scale(x.data(), mask.data(), 1.25f, y.data(), n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) c.expect("y", i, y[i], mask.first(i) != 0 ? 1.25 * x.first(i) : 0, 1);
}

}  // namespace

TEST_CASE("ptx: elementwise kernels") {
  for (const std::int64_t n : {0, 1, 31, 255, 256, 257, 1000, 70001})
    for (const int offset : {0, 1}) {
      relu_cases(n, offset);
      arithmetic_cases(n, offset);
      mask_cases(n, offset);
    }
  check_all_launched("elementwise",
                     {"dropout_mask_kernel", "set_counter_kernel", "advance_kernel", "gather_images_kernel"});
}

TEST_CASE("ptx: the counter of steps") {
  Case c("advance", {});
  const auto counter = c.output<std::uint64_t>("counter", 1);
  c.run([&] {
    kernels::set_counter(counter.data(), 40, nullptr);
    kernels::advance(counter.data(), 2, nullptr);
    kernels::advance(counter.data(), std::uint64_t{1} << 40, nullptr);
  });
  c.expect_equal("counter", 0, static_cast<std::int64_t>(counter[0]), 42 + (std::int64_t{1} << 40));
  check_launched({"set_counter_kernel", "advance_kernel"});
}

TEST_CASE("ptx: this test's own Philox gives the words of its paper") {
  const PhiloxWords zero = philox({{0, 0, 0, 0}}, 0), ones = philox({{~0U, ~0U, ~0U, ~0U}}, ~std::uint64_t{0});
  const std::uint32_t known[2][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}};
  for (int i = 0; i < 4; ++i) {
    CHECK(zero.at[i] == known[0][i]);
    CHECK(ones.at[i] == known[1][i]);
  }
}
