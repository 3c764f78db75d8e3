// Batch norm with relu and a second summand in one operator: the bits of the operators one by one.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

struct Inputs {
  Array x, residual, weight, bias, dy;
  bool training = true, relu = true, with_residual = true;
};

Inputs random_inputs(const Shape& shape, Mt19937& generator) {
  return {random_array(shape, generator), random_array(shape, generator), random_array({shape[1]}, generator),
          random_array({shape[1]}, generator), random_array(shape, generator)};
}

/// The result, running statistics and all gradients, by one operator or one by one.
std::vector<Tensor> results(const Inputs& in, Layout layout, bool fused) {
  const Variable x = leaf(in.x), residual = leaf(in.residual), weight = leaf(in.weight), bias = leaf(in.bias);
  const Variable second = in.with_residual ? ops::to_layout(residual, layout) : Variable();
  const Tensor mean = zeros(weight.shape()), variance = to_tensor(in.weight);
  BatchNorm2dOptions options = {.training = in.training, .relu = fused && in.relu};
  for (float& value : variance.span<float>()) value = value * value + 1;
  Variable y =
      ops::batch_norm2d(ops::to_layout(x, layout), weight, bias, mean, variance, options, fused ? second : Variable());
  if (!fused && in.with_residual) y = ops::add(y, second);
  if (!fused && in.relu) y = ops::relu(y);
  backward(y, in.dy);
  std::vector<Tensor> all = {ops::to_plain(y).value(), mean, variance, x.grad(), weight.grad(), bias.grad()};
  if (in.with_residual) all.push_back(residual.grad());
  return all;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = std::memcmp(a[i].raw(), b[i].raw(), a[i].bytes()) == 0;
  return same;
}

}  // namespace

TEST_CASE("batch_norm2d with relu and a residual has the bits of the operators one by one") {
  Mt19937 generator(31);
  for (int i = 0; i < 24; ++i) {
    const Shape shape = {generator.randint(2, 12), random_channels(generator), generator.randint(1, 9),
                         generator.randint(1, 9)};
    Inputs in = random_inputs(shape, generator);
    in.training = i % 3 != 0;
    in.relu = i % 4 != 3;
    in.with_residual = i % 2 == 0;
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), in.training, in.relu, in.with_residual, name(layout));
      CHECK(same_bits(results(in, layout, true), results(in, layout, false)));
    }
  }
}

TEST_CASE("batch_norm2d with relu lets a NaN through and stops at zero, as relu does") {
  Inputs in = {Array({2, 16, 1, 2}), Array({2, 16, 1, 2}), Array({16}), Array({16}), Array({2, 16, 1, 2})};
  in.training = false;
  for (double& value : in.dy.values) value = 3;
  in.x.values[0] = std::numeric_limits<double>::quiet_NaN();
  in.x.values[5] = std::numeric_limits<double>::infinity();
  for (double& value : in.weight.values) value = 1;
  for (const bool with_residual : {true, false})
    for (const Layout layout : layouts_of(16)) {
      in.with_residual = with_residual;
      CAPTURE(with_residual, name(layout));
      const std::vector<Tensor> got = results(in, layout, true);
      const float *const y = got[0].data<float>(), *const dx = got[3].data<float>();
      CHECK((std::isnan(y[0]) && dx[0] > 0));
      CHECK((y[1] == 0 && dx[1] == 0));
      CHECK((std::isinf(y[5]) && dx[5] > 0));
    }
}

TEST_CASE("batch_norm2d needs no gradient of its residual, and one in another layout") {
  Mt19937 generator(37);
  const Inputs in = random_inputs({3, 16, 4, 5}, generator);
  const std::vector<Tensor> expected = results(in, Layout::plain, false);
  for (const Layout layout : layouts_of(16)) {
    CAPTURE(name(layout));
    const Variable x = leaf(in.x), weight = leaf(in.weight), bias = leaf(in.bias);
    const Variable y = ops::batch_norm2d(x, weight, bias, zeros({16}), zeros({16}), {.relu = true},
                                         ops::to_layout(Variable(to_tensor(in.residual)), layout));
    y.backward(to_tensor(in.dy));
    CHECK(same_bits({y.value(), x.grad()}, {expected[0], expected[3]}));
  }
}

TEST_CASE("batch norm keeps a mean far from zero apart from the deviation") {
  const Shape shape = {8, 16, 5, 5};
  Array x(shape);
  for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = 4096 + static_cast<double>(i % 7) / 8;
  reference::BatchNorm norm = {Array({16}), Array({16}), Array({16}), Array({16}), true};
  for (double& value : norm.weight.values) value = 1;
  const Variable weight = leaf(norm.weight), bias = leaf(norm.bias);
  const Tensor mean = zeros({16}), variance = zeros({16});
  const Variable y = ops::batch_norm2d(leaf(x), weight, bias, mean, variance, {});
  static_cast<void>(reference::batch_norm2d(x, norm));
  CHECK(relative_error(variance, norm.running_var) < 1e-6);
}
