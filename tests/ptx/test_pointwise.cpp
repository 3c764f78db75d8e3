#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/backend/pointwise.h"
#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
using duet::Pointwise;
using duet::Walk;
namespace kernels = duet::cuda::kernels;

constexpr double kRootOfHalf = 0.70710678118654752440;

double value_of(Pointwise f, double a, double b, double c) {
  switch (f) {
    case Pointwise::copy: return a;
    case Pointwise::add: return a + b;
    case Pointwise::sub: return a - b;
    case Pointwise::mul: return a * b;
    case Pointwise::div: return a / b;
    case Pointwise::div_right_gradient: return -c * (a / b / b);
    case Pointwise::exp: return std::exp(a);
    case Pointwise::exp_gradient: return c * a;
    case Pointwise::log: return std::log(a);
    case Pointwise::log_gradient: return c / a;
    case Pointwise::sqrt: return std::sqrt(a);
    case Pointwise::sqrt_gradient: return c / (2 * a);
    case Pointwise::sigmoid: return 1 / (1 + std::exp(-a));
    case Pointwise::sigmoid_gradient: return c * (1 - a) * a;
    case Pointwise::tanh: return std::tanh(a);
    case Pointwise::tanh_gradient: return c * (1 - a * a);
    case Pointwise::gelu: return a * 0.5 * (1 + std::erf(a * kRootOfHalf));
    case Pointwise::gelu_gradient:
      return c * (0.5 * (1 + std::erf(a * kRootOfHalf)) + a * 0.39894228040143267794 * std::exp(-0.5 * a * a));
    case Pointwise::leaky_relu: return a > 0 ? a : a * b;
    case Pointwise::leaky_relu_gradient: return a > 0 ? c : c * b;
    case Pointwise::absolute_error: return std::fabs(a - b);
    case Pointwise::absolute_error_gradient: return a > b ? c : a < b ? -c : 0;
    case Pointwise::cross_entropy: return (b - 1) * std::log1p(-a) - b * std::log(a);
    case Pointwise::cross_entropy_gradient: return c * (a - b) / ((1 - a) * a);
    case Pointwise::logit_cross_entropy: return (1 - b) * a + std::log1p(std::exp(-a));
    case Pointwise::logit_cross_entropy_gradient: return c * (1 / (1 + std::exp(-a)) - b);
  }
  return 0;
}

Walk flat(std::int64_t n) {
  Walk walk;
  walk.sizes[0] = n;
  for (auto& strides : walk.strides) strides[0] = 1;
  return walk;
}

void function_case(Pointwise f, std::int64_t n, int offset, bool numbers) {
  Case c("pointwise", {static_cast<int>(f), n, offset, numbers});
  const std::size_t count = size_of(n);
  const bool wild = f <= Pointwise::mul;
  const auto input = [&](const char* name) {
    return wild ? c.odd(name, count, offset)
                : c.uniform(name, count, 0.05, f < Pointwise::absolute_error ? 3 : 0.95, offset);
  };
  const Floats a = input("a"), b = numbers ? Floats() : input("b"), g = numbers ? Floats() : input("c");
  const Floats y = c.output("y", count, offset);
  c.run([&] { kernels::pointwise(f, flat(n), {a.data(), b.data(), g.data(), 0.37f}, y.data(), nullptr); });
  for (std::size_t i = 0; i < count; ++i) {
    const double second = b ? double{b.first(i)} : double{0.37f}, third = g ? double{g.first(i)} : double{0.37f};
    const double first = a.first(i), value = value_of(f, first, second, third);
    c.expect("y", i, y[i], {value, wild ? 0 : std::fabs(third) + std::fabs(first)}, wild ? 1 : 8);
  }
}

/// y (2, 7, 5), of any order in memory, = a + b, of which one repeats rows and the other columns.
void strided_case(std::int64_t outer) {
  Case c("pointwise", {outer});
  Walk walk;
  walk.loops = 3;
  const std::int64_t sizes[] = {outer, 7, 5}, strides[4][3] = {{0, 5, 1}, {7, 1, 0}, {0, 0, 0}, {35, 1, 7}};
  for (int loop = 0; loop < 3; ++loop) {
    walk.sizes[loop] = sizes[loop];
    for (int t = 0; t < 4; ++t) walk.strides[t][loop] = strides[t][loop];
  }
  const Floats a = c.normal("a", 35), b = c.normal("b", size_of(outer) * 7), y = c.output("y", size_of(outer) * 35);
  c.run([&] { kernels::pointwise(Pointwise::add, walk, {a.data(), b.data(), nullptr, 0}, y.data(), nullptr); });
  for (std::size_t i = 0; i < size_of(outer); ++i)
    for (std::size_t j = 0; j < 7; ++j)
      for (std::size_t k = 0; k < 5; ++k)
        c.expect("y", i, y[i * 35 + j + 7 * k], double{a.first(j * 5 + k)} + double{b.first(i * 7 + j)}, 1);
}

/// Sums of x (kept, terms, inner) over the dimension in the middle.
void sum_case(std::int64_t kept, std::int64_t terms, std::int64_t inner) {
  Case c("sum", {kept, terms, inner});
  Walk outer, summed;
  outer.loops = 2;
  outer.sizes[0] = kept, outer.sizes[1] = inner;
  outer.strides[0][0] = terms * inner, outer.strides[0][1] = 1;
  summed.sizes[0] = terms;
  summed.strides[0][0] = inner;
  const Floats x = c.normal("x", size_of(kept * terms * inner), 1), y = c.output("y", size_of(kept * inner));
  c.run([&] { kernels::sum(outer, summed, x.data(), y.data(), nullptr); });
  for (std::int64_t i = 0; i < kept; ++i)
    for (std::int64_t k = 0; k < inner; ++k) {
      Expected sum;
      for (std::int64_t j = 0; j < terms; ++j) sum.add(x.first(size_of((i * terms + j) * inner + k)));
      c.expect("y", size_of(i * inner + k), y[size_of(i * inner + k)], sum, static_cast<double>(terms / 32 + 6));
    }
}

/// Rows of a table by indices, two of which lie outside it, and the sum of rows by their indices.
void rows_case(std::int64_t rows, std::int64_t count, int columns) {
  const auto place = [&](Case& c) {
    return c.input<std::int64_t>("indices", size_of(count), 0, [&](std::size_t i) {
      return i == 1 ? -1 : i == 2 ? rows : static_cast<std::int64_t>(c.below(static_cast<std::uint64_t>(rows)));
    });
  };
  const std::size_t width = size_of(columns), size = size_of(count) * width;
  Case gather("gather_rows", {rows, count, columns});
  const auto from = place(gather);
  const Floats table = gather.normal("table", size_of(rows) * width, 1), y = gather.output("y", size);
  gather.run([&] { kernels::gather_rows(table.data(), rows, from.data(), count, columns, y.data(), nullptr); });
  for (std::size_t i = 0; i < size; ++i) {
    const bool inside = i / width != 1 && i / width != 2;
    gather.expect("y", i, y[i], inside ? double{table.first(size_of(from.first(i / width)) * width + i % width)} : NAN,
                  0);
  }
  Case sums("sum_gathered_rows", {rows, count, columns});
  const auto to = place(sums);
  const Floats dy = sums.normal("dy", size, 1), dtable = sums.output("dtable", size_of(rows) * width);
  sums.run([&] { kernels::sum_gathered_rows(dy.data(), to.data(), count, dtable.data(), rows, columns, nullptr); });
  std::vector<Expected> expected(size_of(rows) * width);
  for (std::size_t i = 0; i < size; ++i)
    if (i / width != 1 && i / width != 2) expected[size_of(to.first(i / width)) * width + i % width].add(dy.first(i));
  for (std::size_t i = 0; i < expected.size(); ++i)
    sums.expect("dtable", i, dtable[i], expected[i], static_cast<double>(count));
}

}  // namespace

TEST_CASE("ptx: functions of elements") {
  for (int f = 0; f < duet::kPointwiseFunctions; ++f)
    for (const std::int64_t n : {1, 257, 1000})
      for (const bool numbers : {false, true}) function_case(static_cast<Pointwise>(f), n, n == 257 ? 1 : 0, numbers);
  for (const std::int64_t outer : {1, 2, 300}) strided_case(outer);
  for (const std::int64_t terms : {1, 31, 33, 200}) {
    sum_case(1, terms, 1);
    sum_case(3, terms, 5);
    sum_case(300, terms, 1);
  }
  rows_case(5, 40, 3);
  rows_case(1, 3, 130);
  rows_case(300, 7, 1);
  check_all_launched("pointwise");
}
