// Arithmetic with broadcasting and functions of elements: against the reference, in layouts, with NaN and infinity; the
// bits of gradients in shards; what they refuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/ops/ops.h"
#include "tests/ops/operator_cases.h"

using namespace duet;
using namespace duet_test;

namespace {

void check_values(const Tensor& got, const std::vector<float>& expected) {
  REQUIRE(got.count() == static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float value = got.span<float>()[i];
    CAPTURE(i, value, expected[i]);
    if (std::isfinite(expected[i])) CHECK(value == duet_test::Approx(expected[i]).epsilon(1e-6));
    if (!std::isfinite(expected[i])) CHECK((value == expected[i] || (std::isnan(value) && std::isnan(expected[i]))));
  }
}

}  // namespace

TEST_CASE("arithmetic with broadcasting equals the reference, for drawn shapes of rank 0 to 5") {
  Mt19937 generator(81);
  for (int i = 0; i < 60; ++i) {
    const std::vector<Shape> shapes = random_pair(generator);
    for (const OperatorCase& c : arithmetic_cases(shapes[0], shapes[1], generator))
      check_operator(c, Device{}, generator);
  }
}

TEST_CASE("arithmetic with long rows, repeated from inside and outside") {
  Mt19937 generator(82);
  const std::vector<std::vector<Shape>> pairs = {{{2, 300}, {300}},    {{300, 2}, {300, 1}}, {{2, 257, 1}, {1, 3}},
                                                 {{1}, {3, 5, 17, 2}}, {{600}, {600}},       {{}, {513}}};
  for (const auto& pair : pairs)
    for (const OperatorCase& c : arithmetic_cases(pair[0], pair[1], generator)) check_operator(c, Device{}, generator);
}

TEST_CASE("functions of elements equal the reference") {
  Mt19937 generator(83);
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 3, 2, 5}, Shape{0, 4}, Shape{517}})
    for (const OperatorCase& c : function_cases(shape, generator)) check_operator(c, Device{}, generator);
}

TEST_CASE("arithmetic and functions keep the layout of images, and bring sides into one") {
  Mt19937 generator(84);
  const Array a = away_from_zero(random_array({2, 16, 3, 5}, generator)), b = random_array(a.shape, generator),
              scale = random_array({16, 1, 1}, generator), dy = random_array(a.shape, generator);
  for (const Layout layout : layouts_of(16)) {
    CAPTURE(name(layout));
    const Variable va = leaf(a), vb = leaf(b), vs = leaf(scale), blocked = ops::to_layout(va, layout);
    const Variable quotient = vb / blocked, shifted = 1 - blocked, scaled = blocked * vs;
    CHECK(ops::sigmoid(blocked).value().layout() == layout);
    CHECK(shifted.value().layout() == layout);
    CHECK(relative_error(shifted.value(), map(a, [](double v) { return 1 - v; })) < kTolerance);
    CHECK(relative_error(quotient.value(), map(b, a, std::divides())) < kTolerance);
    CHECK(relative_error(scaled.value(), map(a, scale, std::multiplies())) < kTolerance);
    backward(scaled, dy);
    CHECK(relative_error(va.grad(), map(dy, scale, std::multiplies())) < kTolerance);
    Array sums({16, 1, 1});
    for (std::int64_t i = 0; i < a.shape.count(); ++i) sums[i / 15 % 16] += a[i] * dy[i];
    CHECK(relative_error(vs.grad(), sums) < kTolerance);
  }
}

TEST_CASE("arithmetic of NaN, infinity and zeros of both signs is that of floats") {
  const std::vector<float> odd = {kNan, kInfinity, -kInfinity, 0.0f, -0.0f, 2.0f, 1e-42f};
  const Tensor a = from_values<float>({7, 1}, odd), b = from_values<float>({7}, odd);
  const auto check = [&](const Variable& y, const std::function<float(float, float)>& f) {
    for (std::size_t i = 0; i < 49; ++i) {
      const float got = y.value().span<float>()[i], expected = f(odd[i / 7], odd[i % 7]);
      CAPTURE(odd[i / 7], odd[i % 7], got);
      CHECK(((std::isnan(got) && std::isnan(expected)) ||
             (got == expected && std::signbit(got) == std::signbit(expected))));
    }
  };
  check(Variable(a) + b, std::plus());
  check(Variable(a) - b, std::minus());
  check(Variable(a) * b, std::multiplies());
  check(Variable(a) / b, std::divides());
}

TEST_CASE("functions of NaN, infinity and zero have PyTorch's values and gradients") {
  // torch 2.15 on CPU: y = f(x); y.backward(torch.ones(7)).
  const Tensor input = from_values<float>({7}, {kNan, 0, -0.0f, 1, -1, kInfinity, -kInfinity});
  struct Case {
    Variable (*f)(const Variable&);
    std::vector<float> y, dx;
  };
  const float n = kNan, inf = kInfinity;
  const std::vector<Case> cases = {
      {ops::sigmoid, {n, .5f, .5f, .7310586f, .26894143f, 1, 0}, {n, .25f, .25f, .19661193f, .19661193f, 0, 0}},
      {ops::tanh, {n, 0, 0, .7615942f, -.7615942f, 1, -1}, {n, 1, 1, .4199743f, .4199743f, 0, 0}},
      {ops::gelu, {n, 0, 0, .8413447f, -.15865526f, inf, n}, {n, .5f, .5f, 1.0833154f, -.08331543f, n, n}},
      {[](const Variable& x) { return ops::leaky_relu(x); },
       {n, 0, 0, 1, -.01f, inf, -inf},
       {.01f, .01f, .01f, 1, .01f, 1, .01f}},
      {ops::exp, {n, 1, 1, 2.7182817f, .36787945f, inf, 0}, {n, 1, 1, 2.7182817f, .36787945f, inf, 0}},
      {ops::log, {n, -inf, -inf, 0, n, inf, n}, {n, inf, -inf, 1, -1, 0, 0}}};
  for (const Case& c : cases) {
    const Variable x(input, true), y = c.f(x);
    check_values(y.value(), c.y);
    y.backward(from_values<float>({7}, {1, 1, 1, 1, 1, 1, 1}));
    check_values(x.grad(), c.dx);
  }
}

namespace {

/// Gradients of the parameters of ((x * w + v) / u - t) * s for rows [begin, end) of a batch, one after the other.
Tensor parameter_gradients(const Tensor& x, const Tensor& dy, const std::vector<Tensor>& parameters, std::int64_t begin,
                           std::int64_t end) {
  std::vector<Variable> p;
  std::int64_t count = 0;
  for (const Tensor& value : parameters) {
    p.emplace_back(value, true);
    count += value.count();
  }
  (((Variable(x.rows(begin, end)) * p[0] + p[1]) / p[2] - p[3]) * p[4]).backward(dy.rows(begin, end));
  const Tensor all = empty({count});
  std::int64_t at = 0;
  for (const Variable& leaf : p) {
    copy(leaf.grad(), all.slice(at, leaf.shape()));
    at += leaf.value().count();
  }
  return all;
}

}  // namespace

TEST_CASE("gradients of repeated parameters of 2, 4 and 8 shards sum to the very bits of the whole batch") {
  Mt19937 generator(85);
  const auto random = [&](const Shape& shape) { return to_tensor(away_from_zero(random_array(shape, generator))); };
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 19, 64}) {
    Tensor x = random({rows, 6, 33}), dy = random({rows, 6, 33});
    x.set_stamp({3, 0, rows});
    for (std::int64_t i = 0; i < dy.count(); ++i)  // zeros of both signs, in the same places of all rows
      if (i % 198 % 5 == 0) dy.data<float>()[i] = i % 198 % 2 == 0 ? 0.0f : -0.0f;
    const std::vector<Tensor> parameters = {random({6, 33}), random({1, 6, 33}), random({1, 6, 1}), random({33}),
                                            random({})};
    const Tensor whole = parameter_gradients(x, dy, parameters, 0, rows);
    for (const int shards : {2, 4, 8}) {
      std::vector<Tensor> parts;
      for (int i = 0; i < shards; ++i)
        parts.push_back(
            parameter_gradients(x, dy, parameters, block_begin(i, rows, shards), block_begin(i + 1, rows, shards)));
      const Tensor sum = empty(whole.shape());
      backend(sum).sum_devices(parts, sum, false, 0, 1);
      CAPTURE(rows, shards);
      CHECK(std::memcmp(whole.raw(), sum.raw(), whole.bytes()) == 0);
    }
  }
}

TEST_CASE("a result has the stamp of the side whose rows it has") {
  Tensor x = zeros({2, 3});
  x.set_stamp({7, 4, 8});
  CHECK((Variable(zeros({3})) + x).value().stamp() == x.stamp());
  CHECK((x / Variable(zeros({2, 1}))).value().stamp() == x.stamp());
  CHECK((1 - Variable(x)).value().stamp() == x.stamp());
  CHECK(ops::gelu(x).value().stamp() == x.stamp());
  CHECK_FALSE((Variable(zeros({4, 1, 1})) * x).value().stamp().stamped());
}

TEST_CASE("arithmetic refuses shapes that do not broadcast, other types, and two numbers") {
  const Variable x(zeros({2, 3}));
  CHECK_THROWS_WITH(x + Variable(zeros({2, 4})),
                    "add: shapes [2, 3] and [2, 4] differ in dimension -1, expected equal sizes or 1");
  CHECK_THROWS_WITH(Variable(zeros({5, 2, 3})) / Variable(zeros({3, 1, 1})),
                    "div: shapes [5, 2, 3] and [3, 1, 1] differ in dimension -3, expected equal sizes or 1");
  CHECK_THROWS_WITH(x - Variable(zeros({2, 3}, DType::u8)), "sub: got u8, expected f32");
  CHECK_THROWS_WITH(Variable() * x, "mul: got nothing, expected a tensor");
  CHECK_THROWS_WITH(ops::mul(2, 3), "mul: got two numbers, expected a tensor");
  CHECK_THROWS_WITH(ops::sigmoid(Variable()), "sigmoid: got nothing, expected a tensor");
  CHECK_THROWS_AS(Variable(zeros({2, 3}), true) + zeros({2, 3}).to({DeviceKind::cpu, 1}), DeviceError);
  CHECK_THROWS_AS(Variable(zeros({1, 1, 1, 1, 1, 1})) + Variable(zeros({1, 1, 1, 1, 1, 1, 1})), ShapeError);
}
