// Operators of a user's own, and check_gradients().
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "lib/autograd/check_finite.h"
#include "lib/backend/backend.h"
#include "lib/ops/custom.h"
#include "lib/ops/ops.h"
#include "tests/ops/operator_cases.h"

using namespace duet;
using namespace duet_test;
using ops::Tensors;

namespace {

/// y = x * b for columns b, whose gradient is given for each row.
struct Scaled {
  static constexpr const char* kName = "scaled";
  static constexpr bool kSumsRows = true;
  Tensor forward(const Tensors& in) { return product(in[0], in[1]); }
  Tensors backward(const Tensor& dy, const Tensors& in, const Tensor&) {
    return {product(dy, in[1]), product(dy, in[0])};
  }
  static Tensor product(const Tensor& x, const Tensor& b) {
    const Tensor y = empty(x.shape());
    for (std::int64_t i = 0; i < y.count(); ++i)
      y.data<float>()[i] = x.data<float>()[i] * b.data<float>()[i % b.count()];
    return y;
  }
};

/// x * x, of which forward keeps something, and whose backward gives what `gradient` makes of the right one.
template <class Gradient>
struct Square {
  static constexpr const char* kName = "square";
  static constexpr bool kSumsRows = false;
  Tensor forward(const Tensors& in) {
    twice = (Variable(in[0]) * 2).value();
    return (Variable(in[0]) * in[0]).value();
  }
  Tensors backward(const Tensor& dy, const Tensors&, const Tensor&) { return {gradient((dy * twice).value())}; }
  Gradient gradient;
  Tensor twice = {};
};
template <class Gradient>
Variable square(const Variable& x, Gradient gradient) {
  return ops::custom(Square<Gradient>{gradient}, {x});
}

const auto kRight = [](const Tensor& dx) { return dx; };

Tensor random(const Shape& shape, Mt19937& generator) { return to_tensor(random_array(shape, generator)); }

}  // namespace

TEST_CASE("an operator of one's own has its values and gradients, with the rows of a parameter's added up") {
  Mt19937 generator(121);
  const OperatorCase scaled = {"scaled",
                               {random_array({4, 3}, generator), random_array({3}, generator)},
                               [](const std::vector<Variable>& x) {
                                 return ops::custom(Scaled{}, {x[0], x[1]});
                               },
                               [](const std::vector<Array>& x) { return map(x[0], x[1], std::multiplies()); }};
  check_operator(scaled, Device{}, generator);
  const OperatorCase squared = {
      "square",
      {random_array({2, 16, 2, 3}, generator)},
      [](const std::vector<Variable>& x) { return square(ops::to_layout(x[0], Layout::blocked8), kRight); },
      [](const std::vector<Array>& x) { return map(x[0], [](double v) { return v * v; }); }};
  check_operator(squared, Device{}, generator);
  CHECK_FALSE(square(zeros({2}), kRight).requires_grad());
}

TEST_CASE("the parameter's gradient of an operator of one's own has the same bits in 2, 4 and 8 shards") {
  Mt19937 generator(122);
  for (const std::int64_t rows : {2, 3, 8, 19}) {
    Tensor x = random({rows, 33}, generator);
    x.set_stamp({3, 0, rows});
    const Tensor b = random({33}, generator), dy = random({rows, 33}, generator);
    const auto gradient = [&](std::int64_t begin, std::int64_t end) {
      const Variable leaf(b, true);
      const Variable y = ops::custom(Scaled{}, {x.rows(begin, end), leaf});
      CHECK(y.value().stamp() == x.rows(begin, end).stamp());
      y.backward(dy.rows(begin, end));
      return leaf.grad();
    };
    const Tensor whole = gradient(0, rows);
    for (const int shards : {2, 4, 8}) {
      Tensors parts;
      for (int i = 0; i < shards; ++i)
        parts.push_back(gradient(block_begin(i, rows, shards), block_begin(i + 1, rows, shards)));
      const Tensor sum = empty(b.shape());
      backend(sum).sum_devices(parts, sum, false, 0, 1);
      CAPTURE(rows, shards);
      CHECK(std::memcmp(sum.raw(), whole.raw(), sum.bytes()) == 0);
    }
  }
}

TEST_CASE("what an operator of one's own gives back is checked") {
  const Variable x(zeros({2, 3}), true);
  const auto text = [&](auto gradient) {
    try {
      square(x, gradient).backward(zeros({2, 3}));
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(text([](const Tensor& dx) { return dx; }).empty());
  CHECK(text([](const Tensor&) { return Tensor(); }).empty());
  CHECK(text([](const Tensor&) {
          return zeros({3, 2});
        }) == "square: the gradient of input 0 is f32[3, 2] plain on cpu:0, expected f32[2, 3] plain on cpu:0");
  CHECK(text([](const Tensor&) {
          return zeros({2, 2, 3});
        }) == "square: the gradient of input 0 is f32[2, 2, 3] plain on cpu:0, expected f32[2, 3] plain on cpu:0");
  CHECK(text([](const Tensor&) {
          return zeros({2, 3}, DType::f64);
        }) == "square: the gradient of input 0 is f64[2, 3] plain on cpu:0, expected f32[2, 3] plain on cpu:0");

  struct Nothing : Scaled {
    Tensor forward(const Tensors&) { return {}; }
  };
  CHECK_THROWS_WITH(ops::custom(Nothing{}, {x}), "scaled: its result is nothing, expected a tensor");
  struct OneGradient : Scaled {
    Tensors backward(const Tensor& dy, const Tensors&, const Tensor&) { return {dy}; }
  };
  const Variable b(zeros({3}), true);
  CHECK_THROWS_WITH(ops::custom(OneGradient{}, {x, b}).backward(zeros({2, 3})),
                    "scaled: its backward gave 1 gradients, expected 2, undefined ones among them");
  // A parameter next to a stamped batch: its gradient has to have rows.
  struct Summed : Scaled {
    Tensors backward(const Tensor& dy, const Tensors& in, const Tensor&) { return {dy, in[1]}; }
  };
  Tensor batch = zeros({2, 3});
  batch.set_stamp({1, 0, 2});
  CHECK_THROWS_WITH(ops::custom(Summed{}, {Variable(batch), b}).backward(zeros({2, 3})),
                    "scaled: the gradient of input 1 is f32[3] plain on cpu:0, expected f32[2, 3] plain on cpu:0");
  CHECK_THROWS_WITH(ops::custom(Scaled{}, {b, Variable(zeros({3}).to({DeviceKind::cpu, 1}))}),
                    "scaled: arguments lie on cpu:1 and cpu:0, expected one device: register a tensor with gradients "
                    "as a parameter of the module");
  CHECK_THROWS_WITH(ops::custom(Scaled{}, {}), "scaled: got no inputs, expected 1 or more");
}

TEST_CASE("an operator of one's own sees that its inputs are those of forward, and CheckFinite names it") {
  const Tensor values = from_values<float>({2}, {1, 2});
  const Variable x(values, true), y = square(x, kRight);
  values.data<float>()[0] = 5;
  CHECK_THROWS_WITH(y.backward(zeros({2})), ContainsSubstring("backward of square: its input f32[2] was modified"));
  const CheckFinite check;
  CHECK_THROWS_WITH(square(Variable(from_values<float>({1}, {1e30f}), true), kRight),
                    ContainsSubstring("square: the result"));
}

TEST_CASE("check_gradients passes right gradients and names a wrong one") {
  Mt19937 generator(123);
  const Tensors inputs = {random({3, 4}, generator), random({4}, generator)};
  ops::check_gradients([](const std::vector<Variable>& x) { return ops::custom(Scaled{}, {x[0], x[1]}); }, inputs);
  ops::check_gradients(
      [](const std::vector<Variable>& x) { return ops::sigmoid(ops::exp(x[0]) * x[1]) / (2 + ops::tanh(x[0])); },
      inputs);
  const auto wrong = [](const std::vector<Variable>& x) {
    return square(x[0], [](const Tensor& dx) {
      const Tensor changed = dx.clone();
      changed.data<float>()[5] += 0.05f;
      return changed;
    });
  };
  CHECK_THROWS_AS(ops::check_gradients(wrong, {inputs[0]}), NumericError);
  CHECK_THROWS_WITH(ops::check_gradients(wrong, {inputs[0]}),
                    ContainsSubstring("check_gradients: element 5 of input 0 [3, 4] has gradient"));
  const auto without = [](const std::vector<Variable>& x) { return x[0].detach() * x[1]; };
  CHECK_THROWS_WITH(ops::check_gradients(without, inputs),
                    ContainsSubstring("element 0 of input 0 [3, 4] has gradient 0, but slope"));
}
