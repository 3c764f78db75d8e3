// Operators with references in double that have a forward only: gradients are compared with its slopes. The cases run
// on any device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/ops/losses.h"
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
      {"sqrt", positive, [](Inputs x) { return duet::ops::sqrt(x[0]); }, of([](double v) { return std::sqrt(v); })},
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

/// Losses of elements, and the mean that ends a loss of one's own.
inline std::vector<OperatorCase> loss_cases(const duet::Shape& shape, duet::Mt19937& generator) {
  using Inputs = const std::vector<duet::Variable>&;
  const std::vector<Array> any = {random_array(shape, generator)};
  const std::vector<Array> probability = {map(any[0], [](double v) { return 0.5 + 0.45 * v; })};
  const Array target = map(random_array(shape, generator),
                           [](double v) { return static_cast<double>(static_cast<float>(v / 2 + 0.5)); });
  const auto loss = [target](auto f) {
    return [target, f](Inputs x) { return f(x[0], to_tensor(target).to(x[0].device())); };
  };
  const auto mean = [target](double (*f)(double, double)) {
    return [target, f](const std::vector<Array>& x) {
      Array y{duet::Shape{}};
      for (const double v : map(x[0], target, f).values) y[0] += v / static_cast<double>(target.values.size());
      return y;
    };
  };
  return {{"l1_loss", any, loss(duet::ops::l1_loss), mean([](double x, double t) { return std::abs(x - t); })},
          {"binary_cross_entropy", probability, loss(duet::ops::binary_cross_entropy),
           mean([](double x, double t) { return -t * std::log(x) - (1 - t) * std::log(1 - x); })},
          {"binary_cross_entropy_with_logits", any, loss(duet::ops::binary_cross_entropy_with_logits),
           mean([](double x, double t) { return (1 - t) * x + std::log(1 + std::exp(-x)); })},
          {"batch_mean", any, [](Inputs x) { return duet::ops::batch_mean(x[0] * x[0]); },
           mean([](double x, double) { return x * x; })}};
}

/// x summed over the dimensions that are marked, which have size 1 in the result.
inline Array summed(const Array& x, const std::vector<bool>& over) {
  duet::Shape shape;
  for (int d = 0; d < x.shape.rank(); ++d) shape.append(over[static_cast<std::size_t>(d)] ? 1 : x.shape[d]);
  Array y(shape);
  for (std::int64_t i = 0; i < x.shape.count(); ++i) {
    std::int64_t rest = i, at = 0, step = 1;
    for (int d = x.shape.rank() - 1; d >= 0; rest /= x.shape[d], step *= shape[d], --d)
      if (!over[static_cast<std::size_t>(d)]) at += rest % x.shape[d] * step;
    y[at] += x[i];
  }
  return y;
}

inline Array with_shape(Array x, const duet::Shape& shape) {
  x.shape = shape;
  return x;
}

/// The elements of x for which place(i) is not negative, at that place.
template <class Place>
Array moved(const Array& x, const duet::Shape& shape, Place place) {
  Array y(shape);
  for (std::int64_t i = 0; i < x.shape.count(); ++i) {
    std::vector<std::int64_t> at;
    std::int64_t rest = i;
    for (int d = x.shape.rank() - 1; d >= 0; rest /= x.shape[d], --d) at.insert(at.begin(), rest % x.shape[d]);
    if (!place(at)) continue;
    std::int64_t to = 0;
    for (int d = 0; d < shape.rank(); ++d) to = to * shape[d] + at[static_cast<std::size_t>(d)];
    y[to] = x[i];
  }
  return y;
}

/// Sums and means over drawn dimensions, other shapes and parts of x, of rank 1 or more.
inline std::vector<OperatorCase> shape_cases(const duet::Shape& shape, duet::Mt19937& generator) {
  using Inputs = const std::vector<duet::Variable>&;
  using Arrays = const std::vector<Array>&;
  const std::vector<Array> x = {random_array(shape, generator)};
  const int rank = shape.rank();
  std::vector<bool> over(static_cast<std::size_t>(rank));
  std::vector<int> dims;
  duet::Shape kept;
  double terms = 1;
  for (int d = 0; d < rank; ++d) {
    over[static_cast<std::size_t>(d)] = generator.randint(0, 2) == 0 || (d == rank - 1 && dims.empty());
    if (over[static_cast<std::size_t>(d)])
      dims.push_back(d % 2 == 0 ? d : d - rank), terms *= static_cast<double>(shape[d]);
    if (!over[static_cast<std::size_t>(d)]) kept.append(shape[d]);
  }
  const int a = static_cast<int>(generator.randint(0, rank)), b = static_cast<int>(generator.randint(0, rank));
  const auto ua = static_cast<std::size_t>(a), ub = static_cast<std::size_t>(b);
  const std::int64_t begin = generator.randint(0, shape[a] + 1), end = generator.randint(begin, shape[a] + 1);
  std::vector<OperatorCase> cases = {
      {"sum", x, [=](Inputs v) { return duet::ops::sum(v[0], dims); },
       [=](Arrays v) { return with_shape(summed(v[0], over), kept); }},
      {"sum of all", x, [](Inputs v) { return duet::ops::sum(v[0]); },
       [=](Arrays v) { return with_shape(summed(v[0], std::vector<bool>(over.size(), true)), {}); }},
      {"reshape", x,
       [](Inputs v) {
         return duet::ops::reshape(v[0], {1, v[0].value().count(), 1});
       },
       [](Arrays v) {
         return with_shape(v[0], {1, v[0].shape.count(), 1});
       }},
      {"transpose", x, [=](Inputs v) { return duet::ops::transpose(v[0], a, b - rank); },
       [=](Arrays v) {
         return moved(v[0], v[0].shape.with(a, v[0].shape[b]).with(b, v[0].shape[a]), [&](auto& at) {
           std::swap(at[ua], at[ub]);
           return true;
         });
       }},
      {"slice", x, [=](Inputs v) { return duet::ops::slice(v[0], a - rank, begin, end); },
       [=](Arrays v) {
         return moved(v[0], v[0].shape.with(a, end - begin), [&](auto& at) {
           at[ua] -= begin;
           return at[ua] >= 0 && at[ua] < end - begin;
         });
       }}};
  if (terms > 0)
    cases.push_back({"mean", x, [=](Inputs v) { return duet::ops::mean(v[0], dims, true); },
                     [=](Arrays v) { return map(summed(v[0], over), [&](double s) { return s / terms; }); }});
  return cases;
}

/// Products of `batch` matrices, or with one for all of them.
inline std::vector<OperatorCase> product_cases(const duet::Shape& batch, std::int64_t m, std::int64_t k, std::int64_t p,
                                               duet::Mt19937& generator) {
  const auto with_matrix = [&](std::int64_t rows, std::int64_t columns) {
    duet::Shape shape = batch;
    shape.append(rows);
    shape.append(columns);
    return shape;
  };
  const duet::Shape result = with_matrix(m, p);
  std::vector<OperatorCase> cases;
  for (const bool one : {false, true}) {
    const Array a = random_array(with_matrix(m, k), generator),
                b = random_array(one ? duet::Shape{k, p} : with_matrix(k, p), generator);
    cases.push_back({one ? "matmul with one" : "matmul",
                     {a, b},
                     [](const std::vector<duet::Variable>& x) { return duet::ops::matmul(x[0], x[1]); },
                     [=](const std::vector<Array>& x) {
                       Array y(result);
                       for (std::int64_t i = 0; i < result.count(); ++i)
                         for (std::int64_t j = 0; j < k; ++j)
                           y[i] += x[0][i / p * k + j] * x[1][(one ? 0 : i / (m * p) * k * p) + j * p + i % p];
                       return y;
                     }});
  }
  return cases;
}

/// softmax and log_softmax along dimension d.
inline std::vector<OperatorCase> softmax_cases(const duet::Shape& shape, int d, duet::Mt19937& generator) {
  const std::vector<Array> x = {random_array(shape, generator)};
  std::vector<bool> over(static_cast<std::size_t>(shape.rank()));
  over[static_cast<std::size_t>(d)] = true;
  const auto total = [over](const Array& v) { return summed(map(v, [](double e) { return std::exp(e); }), over); };
  return {{"softmax", x, [d](const std::vector<duet::Variable>& v) { return duet::ops::softmax(v[0], d); },
           [total](const std::vector<Array>& v) {
             return map(v[0], total(v[0]), [](double e, double sum) { return std::exp(e) / sum; });
           }},
          {"log_softmax", x, [d](const std::vector<duet::Variable>& v) { return duet::ops::log_softmax(v[0], d); },
           [total](const std::vector<Array>& v) {
             return map(v[0], total(v[0]), [](double e, double sum) { return e - std::log(sum); });
           }}};
}

/// Rows of a table of `rows` by indices of this shape.
inline OperatorCase embedding_case(const duet::Shape& shape, std::int64_t rows, std::int64_t columns,
                                   duet::Mt19937& generator) {
  std::vector<std::int64_t> indices = random_labels(shape.count(), rows, generator);
  duet::Shape result = shape;
  result.append(columns);
  return {"embedding",
          {random_array({rows, columns}, generator)},
          [=](const std::vector<duet::Variable>& x) {
            return duet::ops::embedding(x[0], duet::from_values(shape, indices).to(x[0].device()));
          },
          [=](const std::vector<Array>& x) {
            Array y(result);
            for (std::int64_t i = 0; i < result.count(); ++i)
              y[i] = x[0][indices[static_cast<std::size_t>(i / columns)] * columns + i % columns];
            return y;
          }};
}

struct TransposedConv {
  duet::Shape x;
  std::int64_t out;  // channels of a group
  duet::Window2d window;
  std::int64_t output_padding, groups;
};

inline OperatorCase conv_transpose_case(const TransposedConv& c, duet::Mt19937& generator) {
  const duet::Window2d& window = c.window;
  const duet::Shape w = {c.x[1], c.out, window.kernel_h, window.kernel_w};
  const auto size = [&](std::int64_t in, std::int64_t stride, std::int64_t pad, std::int64_t kernel) {
    return (in - 1) * stride - 2 * pad + kernel + c.output_padding;
  };
  const duet::Shape y = {c.x[0], c.out * c.groups, size(c.x[2], window.stride_h, window.pad_h, window.kernel_h),
                         size(c.x[3], window.stride_w, window.pad_w, window.kernel_w)};
  return {"conv_transpose2d",
          {random_array(c.x, generator), random_array(w, generator), random_array({y[1]}, generator)},
          [=](const std::vector<duet::Variable>& v) {
            return duet::ops::conv_transpose2d(v[0], v[1], v[2], c.window, c.output_padding, c.groups);
          },
          [=](const std::vector<Array>& v) {
            Array result(y);
            for (std::int64_t i = 0; i < y.count(); ++i) result[i] = v[2][i / (y[2] * y[3]) % y[1]];
            const std::int64_t of_group = c.x[1] / c.groups;
            for (std::int64_t i = 0; i < c.x.count() * c.out; ++i) {  // each element of x, for each output
              const std::int64_t k = i % c.out, at = i / c.out, column = at % c.x[3], row = at / c.x[3] % c.x[2],
                                 in = at / (c.x[3] * c.x[2]) % c.x[1], n = at / c.x.count_from(1);
              for (std::int64_t r = 0; r < w[2]; ++r)
                for (std::int64_t s = 0; s < w[3]; ++s) {
                  const std::int64_t p = row * c.window.stride_h - c.window.pad_h + r,
                                     q = column * c.window.stride_w - c.window.pad_w + s;
                  if (p < 0 || p >= y[2] || q < 0 || q >= y[3]) continue;
                  result.at(n, in / of_group * c.out + k, p, q) += v[0][at] * v[1].at(in, k, r, s);
                }
            }
            return result;
          }};
}

inline std::vector<OperatorCase> conv_transpose_cases(duet::Mt19937& generator) {
  std::vector<OperatorCase> cases;
  for (const TransposedConv& c : {TransposedConv{{2, 3, 4, 3}, 2, {3, 2, 1, 1, 0, 0}, 0, 1},
                                  TransposedConv{{1, 4, 3, 3}, 3, {4, 4, 2, 2, 1, 1}, 0, 1},
                                  TransposedConv{{2, 4, 3, 2}, 2, {3, 3, 2, 2, 1, 1}, 1, 2},
                                  TransposedConv{{1, 16, 3, 3}, 16, {2, 2, 2, 2, 0, 0}, 0, 1},
                                  TransposedConv{{2, 16, 2, 2}, 1, {3, 3, 2, 2, 1, 1}, 1, 1},
                                  TransposedConv{{2, 8, 2, 3}, 8, {3, 3, 3, 2, 0, 1}, 1, 1}})
    cases.push_back(conv_transpose_case(c, generator));
  return cases;
}

/// layer_norm of (outer, inner) numbers, where inner is the product of `normalised`.
inline OperatorCase layer_norm_case(const duet::Shape& x, const duet::Shape& normalised, duet::Mt19937& generator) {
  return {
      "layer_norm",
      {random_array(x, generator), random_array(normalised, generator), random_array(normalised, generator)},
      [=](const std::vector<duet::Variable>& v) { return duet::ops::layer_norm(v[0], normalised, v[1], v[2], 1e-3); },
      [=](const std::vector<Array>& v) {
        Array y(x);
        const std::int64_t inner = normalised.count();
        for (std::int64_t begin = 0; begin < x.count(); begin += inner) {
          double mean = 0, variance = 0;
          for (std::int64_t i = 0; i < inner; ++i) mean += v[0][begin + i] / static_cast<double>(inner);
          for (std::int64_t i = 0; i < inner; ++i)
            variance += (v[0][begin + i] - mean) * (v[0][begin + i] - mean) / static_cast<double>(inner);
          for (std::int64_t i = 0; i < inner; ++i)
            y[begin + i] = (v[0][begin + i] - mean) / std::sqrt(variance + 1e-3) * v[1][i] + v[2][i];
        }
        return y;
      }};
}

/// Attention of `heads` pairs of (t, d) queries and (s, d) keys, (s, e) values.
inline OperatorCase attention_case(std::int64_t t, std::int64_t s, std::int64_t d, std::int64_t e, bool causal,
                                   duet::Mt19937& generator) {
  constexpr std::int64_t kHeads = 4;
  return {causal ? "causal attention" : "attention",
          {random_array({2, 2, t, d}, generator), random_array({2, 2, s, d}, generator),
           random_array({2, 2, s, e}, generator)},
          [=](const std::vector<duet::Variable>& v) {
            return duet::ops::scaled_dot_product_attention(v[0], v[1], v[2], causal);
          },
          [=](const std::vector<Array>& v) {
            Array y({2, 2, t, e});
            for (std::int64_t head = 0; head < kHeads; ++head)
              for (std::int64_t i = 0; i < t; ++i) {
                const std::int64_t seen = causal ? std::min(s, i + 1) : s;
                std::vector<double> weights;
                double total = 0;
                for (std::int64_t j = 0; j < seen; ++j) {
                  double score = 0;
                  for (std::int64_t k = 0; k < d; ++k)
                    score += v[0][(head * t + i) * d + k] * v[1][(head * s + j) * d + k];
                  total += weights.emplace_back(std::exp(score / std::sqrt(static_cast<double>(d))));
                }
                for (std::int64_t j = 0; j < seen; ++j)
                  for (std::int64_t k = 0; k < e; ++k)
                    y[(head * t + i) * e + k] +=
                        weights[static_cast<std::size_t>(j)] / total * v[2][(head * s + j) * e + k];
              }
            return y;
          }};
}

inline std::vector<OperatorCase> sequence_cases(duet::Mt19937& generator) {
  return {embedding_case({3, 4}, 5, 7, generator),
          embedding_case({9}, 3, 300, generator),
          embedding_case({0, 4}, 5, 2, generator),
          layer_norm_case({3, 4, 10}, {10}, generator),
          layer_norm_case({2, 3, 2, 5}, {3, 2, 5}, generator),
          layer_norm_case({40, 30}, {30}, generator),
          attention_case(5, 7, 4, 3, false, generator),
          attention_case(6, 6, 8, 5, true, generator),
          attention_case(3, 5, 2, 2, true, generator)};
}

}  // namespace duet_test
