// Gradients of linear layers where most of dy is zero: its zeros are skipped, except where a factor is not finite.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

struct NonzeroCase {
  Array x, w, b, dy;
};

/// About `nonzero` in 8 gradients are not zero.
NonzeroCase random_nonzero_case(Mt19937& generator, std::int64_t nonzero) {
  const std::int64_t rows = generator.randint(1, 131), out = generator.randint(1, 150);
  const std::int64_t in = generator.randint(0, 3) ? generator.randint(1, 400) : 64 * generator.randint(1, 6);
  NonzeroCase c = {random_array({rows, in}, generator), random_array({out, in}, generator),
                   random_array({out}, generator), random_array({rows, out}, generator)};
  for (double& value : c.dy.values)
    if (generator.randint(0, 8) >= nonzero) value = 0;
  return c;
}

struct Got {
  Tensor x, w, b;
};

Got gradients(const NonzeroCase& c) {
  const Variable x = leaf(c.x), w = leaf(c.w), b = leaf(c.b);
  backward(ops::linear(x, w, b), c.dy);
  return {x.grad(), w.grad(), b.grad()};
}

/// Whether `got` is finite exactly where `expected` is.
bool same_finite(const Tensor& got, const Array& expected) {
  for (std::int64_t i = 0; i < got.count(); ++i)
    if (std::isfinite(got.data<float>()[i]) != std::isfinite(expected[i])) return false;
  return true;
}

}  // namespace

TEST_CASE("gradients of linear equal the reference whatever part of dy is zero") {
  Mt19937 generator(41);
  for (const std::int64_t nonzero : {0, 1, 2, 4, 8})
    for (int i = 0; i < 12; ++i) {
      const NonzeroCase c = random_nonzero_case(generator, nonzero);
      CAPTURE(nonzero, i, c.x.shape.str(), c.w.shape.str());
      const auto expected = reference::linear_backward(c.x, c.w, c.dy);
      const Got got = gradients(c);
      CHECK(relative_error(got.x, expected.x) < kTolerance);
      CHECK(relative_error(got.w, expected.w) < kTolerance);
      CHECK(relative_error(got.b, expected.b) < kTolerance);
    }
}

TEST_CASE("a skipped zero hides no input, weight or gradient that is not finite") {
  Mt19937 generator(42);
  for (int i = 0; i < 30; ++i) {
    NonzeroCase c = random_nonzero_case(generator, 2);
    const double bad = i % 2 ? static_cast<double>(NAN) : static_cast<double>(INFINITY);
    Array& spoiled = i % 3 == 0 ? c.x : i % 3 == 1 ? c.w : c.dy;
    spoiled[generator.randint(0, spoiled.shape.count())] = bad;
    CAPTURE(i, bad, c.x.shape.str(), c.w.shape.str());
    const auto expected = reference::linear_backward(c.x, c.w, c.dy);
    const Got got = gradients(c);
    CHECK(same_finite(got.x, expected.x));
    CHECK(same_finite(got.w, expected.w));
    CHECK(same_finite(got.b, expected.b));
  }
}

TEST_CASE("a row's gradient from linear does not depend on the other rows") {
  Mt19937 generator(43);
  for (int i = 0; i < 20; ++i) {
    const NonzeroCase c = random_nonzero_case(generator, 2);
    const std::int64_t row = generator.randint(0, c.x.shape[0]);
    NonzeroCase alone = {Array({1, c.x.shape[1]}), c.w, c.b, Array({1, c.w.shape[0]})};
    for (std::int64_t k = 0; k < c.x.shape[1]; ++k) alone.x[k] = c.x[row * c.x.shape[1] + k];
    for (std::int64_t k = 0; k < c.w.shape[0]; ++k) alone.dy[k] = c.dy[row * c.w.shape[0] + k];
    CAPTURE(i, c.x.shape.str(), c.w.shape.str(), row);
    const Tensor one = gradients(alone).x, all = gradients(c).x.rows(row, row + 1);
    CHECK(std::memcmp(one.raw(), all.raw(), one.bytes()) == 0);
  }
}
