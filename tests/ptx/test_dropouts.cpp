#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

void mask_case(std::int64_t rows, std::int64_t columns, bool counted) {
  Case c("dropout_mask", {rows, columns, counted});
  const kernels::StepDraw draw = c.draw(counted, columns % 2 != 0 ? 16384 : 32768);
  const auto mask = c.output<std::uint8_t>("mask", size_of(rows * columns), 3);
  c.run([&] { kernels::dropout_mask(mask.data(), rows, columns, draw, nullptr); });
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    c.expect_equal("mask", i, mask[i], keeps(draw, at / columns, at % columns));
  }
}

void forward_case(std::int64_t rows, std::int64_t columns, bool biased, bool drops, bool counted) {
  Case c("bias_relu_dropout_forward", {rows, columns, biased, drops, counted});
  const kernels::StepDraw draw = c.draw(counted, columns % 2 != 0 ? 16384 : 32768);
  const Floats y = c.odd("y", size_of(rows * columns), biased ? 1 : 0);
  const Floats bias = biased ? c.normal("bias", size_of(columns), 1) : Floats();
  c.run([&] {
    kernels::bias_relu_dropout_forward(y.data(), bias.data(), rows, static_cast<int>(columns), drops ? &draw : nullptr,
                                       kScale, nullptr);
  });
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
    Expected sum;
    sum.add(y.first(i));
    if (biased) sum.add(bias.first(size_of(column)));
    if (!std::isfinite(sum.scale)) sum.scale = 1;
    if (sum.value <= 0) sum.value = 0;
    if (drops) sum.value *= keeps(draw, row, column) ? double{kScale} : 0;
    c.expect("y", i, y[i], sum, 3);
  }
}

void expect_sums(Case& c, const Floats& sums, const std::vector<Expected>& expected, double units) {
  for (std::size_t i = 0; i < sums.size(); ++i) c.expect("db", i, sums[i], expected[i], units);
}

void backward_cases(std::int64_t rows, int columns) {
  const std::size_t n = size_of(rows * columns), width = size_of(columns);
  for (const bool with_db : {false, true}) {
    Case c("bias_relu_dropout_backward", {rows, columns, with_db});
    const Floats dy = c.normal("dy", n), y = c.odd("y", n, 1), dx = c.output("dx", n);
    const Floats db = with_db ? c.output("db", width, 1) : Floats();
    c.run([&] {
      kernels::bias_relu_dropout_backward(dy.data(), y.data(), kScale, dx.data(), db.data(), rows, columns, nullptr);
    });
    std::vector<Expected> sums(width);
    for (std::size_t i = 0; i < n; ++i) {
      const double gradient = y.first(i) <= 0 ? 0 : double{dy.first(i)} * double{kScale};
      c.expect("dx", i, dx[i], gradient, 1);
      sums[i % width].add(gradient);
    }
    expect_sums(c, db, sums, 40);
  }
  Case c("sum_rows", {rows, columns});
  const Floats dy = c.normal("dy", n, 1), db = c.output("db", width);
  c.run([&] { kernels::sum_rows(dy.data(), db.data(), rows, columns, nullptr); });
  std::vector<Expected> sums(width);
  for (std::size_t i = 0; i < n; ++i) sums[i % width].add(dy.first(i));
  expect_sums(c, db, sums, 40);
}

void row_bias_case(std::int64_t rows, int columns) {
  Case c("add_row_bias", {rows, columns});
  const Floats y = c.normal("y", size_of(rows * columns), 1), bias = c.normal("bias", size_of(columns));
  c.run([&] { kernels::add_row_bias(y.data(), bias.data(), rows, columns, nullptr); });
  for (std::size_t i = 0; i < y.size(); ++i)
    c.expect("y", i, y[i], double{y.first(i)} + double{bias.first(i % size_of(columns))}, 1);
}

void bfloat16_case(std::int64_t n) {
  Case c("to_bfloat16", {n});
  const Floats x = c.odd("x", size_of(n)), rounded = c.output("rounded", size_of(n), 1);
  const auto half = c.output<std::uint16_t>("half", size_of(n), 1);
  c.run([&] {
    kernels::to_bfloat16(x.data(), half.data(), n, nullptr);
    kernels::round_to_bfloat16(x.data(), rounded.data(), n, nullptr);
  });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t bits = std::uint32_t{half[i]} << 16;
    float got;
    std::memcpy(&got, &bits, sizeof got);
    c.expect("half", i, got, bfloat16(x.first(i)), 0);
    c.expect("rounded", i, rounded[i], bfloat16(x.first(i)), 0);
  }
}

}  // namespace

TEST_CASE("ptx: dropout") {
  for (const std::int64_t rows : {0, 1, 3, 40})
    for (const std::int64_t columns : {1, 15, 16, 17, 127, 128, 129, 1024, 1601})
      for (const bool counted : {false, true}) {
        mask_case(rows, columns, counted);
        for (const bool biased : {false, true}) {
          forward_case(rows, columns, biased, true, counted);
          if (!counted) forward_case(rows, columns, biased, false, counted);
        }
      }
  check_launched({"dropout_mask_kernel"});
}

TEST_CASE("ptx: linear layers' biases and roundings") {
  forward_case(3, 130, true, true, true);
  for (const std::int64_t rows : {0, 1, 7, 8, 9, 200})
    for (const int columns : {1, 31, 32, 33, 128, 130}) {
      backward_cases(rows, columns);
      row_bias_case(rows, columns);
      bfloat16_case(rows * columns);
    }
  row_bias_case(DUET_MOST_THREADS / 500 + 3, 500);  // more elements than a launch has threads
  check_all_launched("linear", {"small_linear_"});
}
