// Operators with references in double that have a forward only: gradients are compared with its slopes. The cases run
// on any device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/ops/ops.h"
#include "lib/random.h"
#include "tests/ops/check.h"
#include "tests/support/catch2.h"
#include "tests/support/difference.h"

namespace duet_test {

struct OperatorCase {
  std::string name;
  std::vector<Array> inputs;
  std::function<duet::Variable(const std::vector<duet::Variable>&)> run;
  std::function<Array(const std::vector<Array>&)> reference;
};

/// The gradient of sum(dy * f(inputs)) for input k, by central differences.
inline Array slopes(const OperatorCase& c, std::size_t k, const Array& dy) {
  constexpr double kStep = 1e-5;
  std::vector<Array> inputs = c.inputs;
  Array gradient(inputs[k].shape);
  for (std::size_t i = 0; i < gradient.values.size(); ++i) {
    const double middle = inputs[k].values[i];
    double sides[2] = {};
    for (int side = 0; side < 2; ++side) {
      inputs[k].values[i] = middle + (side == 0 ? kStep : -kStep);
      const Array y = c.reference(inputs);
      for (std::size_t j = 0; j < y.values.size(); ++j) sides[side] += dy.values[j] * y.values[j];
    }
    inputs[k].values[i] = middle;
    gradient.values[i] = (sides[0] - sides[1]) / (2 * kStep);
  }
  return gradient;
}

/// Compares the value and all gradients on `device`, and that an input which asks for none changes nothing.
inline void check_operator(const OperatorCase& c, duet::Device device, duet::Mt19937& generator) {
  std::string shapes;
  std::vector<duet::Variable> leaves;
  for (const Array& input : c.inputs) {
    shapes += input.shape.str();
    leaves.emplace_back(to_tensor(input).to(device), true);
  }
  INFO(c.name << " of " << shapes << " on " << device.str());
  const Array expected = c.reference(c.inputs);
  const duet::Variable y = c.run(leaves);
  CHECK(y.shape() == expected.shape);
  CHECK(relative_error(y.value().to(duet::Device{}), expected) < kTolerance);
  const Array dy = random_array(expected.shape, generator);
  y.backward(to_tensor(dy).to(device));
  std::vector<Array> gradients;
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    gradients.push_back(slopes(c, k, dy));
    CAPTURE(k);
    CHECK(relative_error(leaves[k].grad().to(duet::Device{}), gradients[k]) < kTolerance);
  }
  for (std::size_t k = 0; leaves.size() > 1 && k < leaves.size(); ++k) {
    for (duet::Variable& leaf : leaves) leaf.zero_grad();
    std::vector<duet::Variable> mixed = leaves;
    mixed[k] = leaves[k].detach();
    c.run(mixed).backward(to_tensor(dy).to(device));
    for (std::size_t other = 0; other < leaves.size(); ++other) {
      CAPTURE(k, other);
      if (other == k) CHECK_FALSE(leaves[k].grad().defined());
      if (other != k) CHECK(relative_error(leaves[other].grad().to(duet::Device{}), gradients[other]) < kTolerance);
    }
  }
}

/// f of each element.
template <class F>
Array map(const Array& x, F f) {
  Array y(x.shape);
  std::transform(x.values.begin(), x.values.end(), y.values.begin(), f);
  return y;
}

/// The element of x that broadcasting puts at place i of `shape`.
inline double repeated(const Array& x, const duet::Shape& shape, std::int64_t i) {
  std::int64_t at = 0, step = 1;
  for (int d = 1; d <= shape.rank(); ++d) {
    const std::int64_t place = i % shape[-d];
    i /= shape[-d];
    if (d > x.shape.rank()) continue;
    if (x.shape[-d] != 1) at += place * step;
    step *= x.shape[-d];
  }
  return x[at];
}

/// f(a, b) of each pair of elements, broadcast.
template <class F>
Array map(const Array& a, const Array& b, F f) {
  duet::Shape shape;
  for (int d = std::max(a.shape.rank(), b.shape.rank()); d > 0; --d) {
    const std::int64_t left = d <= a.shape.rank() ? a.shape[-d] : 1, right = d <= b.shape.rank() ? b.shape[-d] : 1;
    shape.append(left == 1 ? right : left);
  }
  Array y(shape);
  for (std::int64_t i = 0; i < shape.count(); ++i) y[i] = f(repeated(a, shape, i), repeated(b, shape, i));
  return y;
}

/// A shape of rank 0 to `most`, with sizes of 0 and 1 among them.
inline duet::Shape random_shape(duet::Mt19937& generator, std::int64_t least, std::int64_t most) {
  duet::Shape shape;
  for (std::int64_t rank = generator.randint(least, most + 1); rank > 0; --rank)
    shape.append(generator.randint(0, 30) == 0 ? 0 : generator.randint(1, 5));
  return shape;
}

/// Two shapes that broadcast.
inline std::vector<duet::Shape> random_pair(duet::Mt19937& generator) {
  const duet::Shape whole = random_shape(generator, 0, 5);
  std::vector<duet::Shape> pair;
  for (int side = 0; side < 2; ++side) {
    duet::Shape shape;
    const std::int64_t missing = side == generator.randint(0, 2) ? generator.randint(0, whole.rank() + 1) : 0;
    for (int d = static_cast<int>(missing); d < whole.rank(); ++d)
      shape.append(generator.randint(0, 3) == 0 ? 1 : whole[d]);
    pair.push_back(shape);
  }
  return pair;
}

/// Elements at least 0.3 away from 0, where quotients and logarithms are tame and leaky_relu has a slope.
inline Array away_from_zero(Array x) {
  for (double& value : x.values) value = static_cast<double>(static_cast<float>(value + (value < 0 ? -0.3 : 0.3)));
  return x;
}

inline std::vector<OperatorCase> arithmetic_cases(const duet::Shape& a, const duet::Shape& b,
                                                  duet::Mt19937& generator) {
  using Inputs = const std::vector<duet::Variable>&;
  using Arrays = const std::vector<Array>&;
  const std::vector<Array> two = {random_array(a, generator), away_from_zero(random_array(b, generator))};
  const std::vector<Array> left = {two[0]}, right = {two[1]};
  return {
      {"a + b", two, [](Inputs x) { return x[0] + x[1]; }, [](Arrays x) { return map(x[0], x[1], std::plus()); }},
      {"a - b", two, [](Inputs x) { return x[0] - x[1]; }, [](Arrays x) { return map(x[0], x[1], std::minus()); }},
      {"a * b", two, [](Inputs x) { return x[0] * x[1]; }, [](Arrays x) { return map(x[0], x[1], std::multiplies()); }},
      {"a / b", two, [](Inputs x) { return x[0] / x[1]; }, [](Arrays x) { return map(x[0], x[1], std::divides()); }},
      {"(2 - a) * 3 + 1", left, [](Inputs x) { return (2 - x[0]) * 3 + 1; },
       [](Arrays x) { return map(x[0], [](double v) { return (2 - v) * 3 + 1; }); }},
      {"-(0.5 / b - 4) / 8", right, [](Inputs x) { return -(0.5 / x[0] - 4) / 8; },
       [](Arrays x) { return map(x[0], [](double v) { return -(0.5 / v - 4) / 8; }); }},
      {"1 + 2 * a", left, [](Inputs x) { return 1 + 2 * x[0]; },
       [](Arrays x) { return map(x[0], [](double v) { return 1 + 2 * v; }); }},
  };
}

inline std::vector<OperatorCase> function_cases(const duet::Shape& shape, duet::Mt19937& generator) {
  using Inputs = const std::vector<duet::Variable>&;
  const std::vector<Array> any = {away_from_zero(random_array(shape, generator))};
  const std::vector<Array> positive = {map(any[0], [](double v) { return std::abs(v); })};
  const auto of = [](double (*f)(double)) { return [f](const std::vector<Array>& x) { return map(x[0], f); }; };
  return {
      {"exp", any, [](Inputs x) { return duet::ops::exp(x[0]); }, of([](double v) { return std::exp(v); })},
      {"log", positive, [](Inputs x) { return duet::ops::log(x[0]); }, of([](double v) { return std::log(v); })},
      {"sigmoid", any, [](Inputs x) { return duet::ops::sigmoid(x[0]); },
       of([](double v) { return 1 / (1 + std::exp(-v)); })},
      {"tanh", any, [](Inputs x) { return duet::ops::tanh(x[0]); }, of([](double v) { return std::tanh(v); })},
      {"gelu", any, [](Inputs x) { return duet::ops::gelu(x[0]); },
       of([](double v) { return v * (1 + std::erf(v / std::sqrt(2.0))) / 2; })},
      {"leaky_relu", any, [](Inputs x) { return duet::ops::leaky_relu(x[0], 0.25); },
       of([](double v) { return v > 0 ? v : 0.25 * v; })},
  };
}

}  // namespace duet_test
