// mul, concat and softmax against the reference, in all layouts; NaN and infinity; what they refuse.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"
#include "tests/support/difference.h"

using namespace duet;
using namespace duet_test;

namespace {

Variable of(const Shape& shape) { return Variable(zeros(shape)); }

/// Channels [begin, end) of each row.
Array channels_of(const Array& x, std::int64_t begin, std::int64_t end) {
  Array part(x.shape.with(1, end - begin));
  const std::int64_t pixels = x.shape.count_from(2);
  for (std::int64_t i = 0; i < part.shape.count(); ++i) {
    const std::int64_t row = i / part.shape.count_from(1);
    part[i] = x[row * x.shape.count_from(1) + begin * pixels + i % part.shape.count_from(1)];
  }
  return part;
}

}  // namespace

TEST_CASE("mul equals the reference in every layout") {
  Mt19937 generator(51);
  for (const Shape& shape : {Shape{3}, Shape{4, 7}, Shape{2, 16, 5, 3}, Shape{3, 24, 2, 2}, Shape{0, 16, 2, 2}}) {
    const Array a = random_array(shape, generator), b = random_array(shape, generator),
                dy = random_array(shape, generator);
    for (const Layout layout : shape.rank() == 4 ? layouts_of(shape[1]) : std::vector{Layout::plain}) {
      CAPTURE(shape.str(), name(layout));
      const Variable va = leaf(a), vb = leaf(b);
      const Variable y = shape.rank() == 4 ? ops::mul(ops::to_layout(va, layout), vb) : ops::mul(va, vb);
      CHECK(y.value().layout() == layout);
      CHECK(relative_error(y.value(), reference::mul(a, b)) < kTolerance);
      backward(y, dy);
      CHECK(relative_error(va.grad(), reference::mul(dy, b)) < kTolerance);
      CHECK(relative_error(vb.grad(), reference::mul(dy, a)) < kTolerance);
    }
  }
}

TEST_CASE("mul of a variable with itself has the gradient of the square, and of constants none") {
  Variable x(from_values<float>({3}, {1, -2, 3}), true);
  const Variable constant(from_values<float>({3}, {4, 5, 6}));
  ops::mul(x, x).backward(from_values<float>({3}, {1, 1, 2}));
  CHECK(x.grad().data<float>()[0] == 2);
  CHECK(x.grad().data<float>()[1] == -4);
  CHECK(x.grad().data<float>()[2] == 12);
  x.zero_grad();
  ops::mul(constant, x).backward(from_values<float>({3}, {1, 1, 1}));
  CHECK(x.grad().data<float>()[2] == 6);
  CHECK_FALSE(ops::mul(constant, constant).requires_grad());
}

TEST_CASE("mul passes NaN and infinity on, and makes NaN of zero times infinity") {
  const Variable x(from_values<float>({3}, {kNan, 0, kInfinity}), true);
  const Variable y = ops::mul(x, Variable(from_values<float>({3}, {0, kInfinity, 2})));
  CHECK(std::isnan(y.value().data<float>()[0]));
  CHECK(std::isnan(y.value().data<float>()[1]));
  CHECK(y.value().data<float>()[2] == kInfinity);
}

TEST_CASE("concat equals the reference in every layout, for one part and for many") {
  Mt19937 generator(52);
  const std::vector<std::vector<std::int64_t>> cases = {{16}, {16, 32}, {3, 5, 1}, {8, 24, 16}, {16, 0, 16}};
  for (const auto& channels : cases)
    for (const Layout layout : {Layout::plain, Layout::blocked8, Layout::blocked16}) {
      std::vector<Array> parts;
      std::vector<Variable> leaves, inputs;
      for (const std::int64_t count : channels) {
        parts.push_back(random_array({3, count, 4, 2}, generator));
        leaves.push_back(leaf(parts.back()));
        const std::vector<Layout> possible = layouts_of(count);
        const bool fits = std::find(possible.begin(), possible.end(), layout) != possible.end();
        inputs.push_back(fits ? ops::to_layout(leaves.back(), layout) : leaves.back());
      }
      const Array y = reference::concat(parts), dy = random_array(y.shape, generator);
      const Variable vy = ops::concat(inputs);
      CAPTURE(channels.size(), channels[0], name(layout));
      CHECK(relative_error(vy.value(), y) == 0);
      backward(vy, dy);
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        CHECK(relative_error(leaves[i].grad(), channels_of(dy, begin, begin + channels[i])) == 0);
        begin += channels[i];
      }
    }
}

TEST_CASE("concat keeps a blocked layout that all parts have, and takes rows of any rank") {
  const Variable a = ops::to_layout(of({2, 8, 3, 3}), Layout::blocked8), b = of({2, 8, 3, 3});
  CHECK(ops::concat({a, a}).value().layout() == Layout::blocked8);
  CHECK(ops::concat({a, b}).value().layout() == Layout::plain);
  CHECK(ops::concat({of({2, 3}), of({2, 4})}).shape() == Shape{2, 7});
  CHECK(ops::concat({of({0, 3, 2}), of({0, 1, 2})}).shape() == Shape{0, 4, 2});
}

TEST_CASE("concat of a part with itself adds up its gradients; constants get none") {
  const Variable x(from_values<float>({2, 1}, {1, 2}), true), constant(from_values<float>({2, 1}, {7, 8}));
  const Variable y = ops::concat({x, constant, x});
  CHECK(y.value().data<float>()[1] == 7);
  y.backward(from_values<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
  CHECK(x.grad().data<float>()[0] == 4);
  CHECK(x.grad().data<float>()[1] == 10);
}

TEST_CASE("softmax equals the reference, and stays finite for large inputs") {
  Mt19937 generator(53);
  for (int i = 0; i < 20; ++i) {
    const std::int64_t rows = generator.randint(1, 21), classes = i % 4 ? generator.randint(1, 70) : 1000;
    Array x = random_array({rows, classes}, generator);
    if (i % 3 == 0)
      for (double& value : x.values) value = 8 * std::round(value * 100);  // up to 800: exp overflows
    const Array dy = random_array(x.shape, generator);
    CAPTURE(i, rows, classes);
    const Variable vx = leaf(x), vy = ops::softmax(vx);
    CHECK(relative_error(vy.value(), reference::softmax(x)) < kTolerance);
    vy.backward(to_tensor(dy));
    // A row that is 1 at one place has gradients near 0, of which only the size of the rounding errors is known.
    CHECK(largest_difference(vx.grad().span<float>(), reference::softmax_backward(x, dy).values) < 1e-6);
  }
}

TEST_CASE("softmax of a row with NaN or infinity is NaN, as in PyTorch; -infinity has no weight") {
  const Variable x(from_values<float>({4, 2}, {kNan, 1, kInfinity, 1, -kInfinity, -kInfinity, -kInfinity, 5}));
  const Tensor y = ops::softmax(x).value();
  for (int i = 0; i < 6; ++i) CHECK(std::isnan(y.data<float>()[i]));
  CHECK(y.data<float>()[6] == 0);
  CHECK(y.data<float>()[7] == 1);
}

TEST_CASE("mul, concat and softmax pass the stamp of their input on") {
  const Rows stamp = {3, 8, 32};
  Tensor x = zeros({4, 16});
  x.set_stamp(stamp);
  const Variable v(x);
  CHECK(ops::mul(v, v).value().stamp() == stamp);
  CHECK(ops::concat({v, v}).value().stamp() == stamp);
  CHECK(ops::softmax(v).value().stamp() == stamp);
}

TEST_CASE("mul, concat and softmax refuse what does not fit") {
  const Variable elsewhere(zeros({2, 3}).to({DeviceKind::cpu, 1})), half(zeros({2, 3}, DType::f16));
  CHECK_THROWS_AS(ops::mul(of({2, 3}), of({3, 2})), ShapeError);
  CHECK_THROWS_WITH(ops::mul(of({2, 3}), of({3, 2})),
                    "mul: shapes [2, 3] and [3, 2] differ in dimension -2, expected equal sizes or 1");
  CHECK_THROWS_WITH(ops::mul(of({2, 3}), half), "mul: got f16, expected f32");
  CHECK_THROWS_AS(ops::mul(Variable(zeros({2, 3}), true), elsewhere), DeviceError);
  CHECK_THROWS_WITH(ops::concat(std::vector<Variable>()), "concat: got no parts, expected 1 or more");
  CHECK_THROWS_WITH(ops::concat({of({2, 3, 4}), of({2, 3, 5})}),
                    "concat: part 1 is [2, 3, 5], expected [2, 3, 4] but for dimension 1");
  CHECK_THROWS_AS(ops::concat({of({2, 3}), of({3, 3})}), ShapeError);
  CHECK_THROWS_AS(ops::concat({of({2, 3}), of({2, 3, 1})}), ShapeError);
  CHECK_THROWS_AS(ops::concat({of({2}), of({2})}), ShapeError);
  CHECK_THROWS_WITH(ops::concat({of({2, 3}), half}), "concat: got f16, expected f32");
  CHECK_THROWS_AS(ops::concat({Variable(zeros({2, 3}), true), elsewhere}), DeviceError);
  CHECK_THROWS_AS(ops::concat({of({2, 3}), Variable()}), ShapeError);
  CHECK_THROWS_WITH(ops::softmax(of({2})), "softmax: got shape [2], expected (N, C)");
  CHECK_THROWS_WITH(ops::softmax(half), "softmax: got f16, expected f32");
}
