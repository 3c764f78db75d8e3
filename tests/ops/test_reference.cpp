// The reference itself, by finite differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/ops/check.h"
#include "tests/support/difference.h"

using namespace duet_test;
using duet::Mt19937;
using duet::Window2d;

namespace {

double dot(const Array& a, const Array& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) total += a.values[i] * b.values[i];
  return total;
}

/// Largest difference between `gradient` and the slopes of f in every element of x.
double slope_error(const std::function<double(const Array&)>& f, Array x, const Array& gradient) {
  constexpr double kStep = 1e-6;
  std::vector<double> slopes;
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double middle = x.values[i];
    x.values[i] = middle + kStep;
    const double above = f(x);
    x.values[i] = middle - kStep;
    const double below = f(x);
    x.values[i] = middle;
    slopes.push_back((above - below) / (2 * kStep));
  }
  return largest_difference(slopes, gradient.values);
}

constexpr double kSlopeTolerance = 1e-7;

}  // namespace

TEST_CASE("reference: a convolution by hand") {
  Array x({1, 1, 2, 2}), w({1, 1, 2, 2}), b({1});
  x.values = {1, 2, 3, 4};
  w.values = {10, 20, 30, 40};
  b.values = {5};
  CHECK(reference::conv2d(x, w, b, {2, 2, 1, 1, 0, 0}).values == std::vector<double>{305});
  CHECK(reference::conv2d(x, w, b, {2, 2, 2, 2, 1, 1}).values == std::vector<double>{45, 65, 65, 45});
}

TEST_CASE("reference: a convolution in groups reads the channels of its group") {
  Array x({1, 4, 1, 1}), w({2, 2, 1, 1});
  x.values = {1, 2, 3, 4};
  w.values = {10, 20, 30, 40};
  CHECK(reference::conv2d(x, w, Array(), {1, 1, 1, 1, 0, 0}).values == std::vector<double>{50, 250});
}

TEST_CASE("reference: convolution's gradients are its slopes, in groups too") {
  Mt19937 generator(1);
  for (const Window2d& window : {Window2d{3, 3, 1, 1, 1, 1}, Window2d{2, 3, 2, 1, 0, 2}}) {
    const std::int64_t groups = window.kernel_h - 1;  // 2, then 1
    const Array x = random_array({2, 4, 5, 4}, generator),
                w = random_array({2, 4 / groups, window.kernel_h, window.kernel_w}, generator),
                b = random_array({2}, generator);
    const Array dy = random_array(reference::conv2d(x, w, b, window).shape, generator);
    const auto g = reference::conv2d_backward(x, w, dy, window);
    CHECK(slope_error([&](const Array& v) { return dot(dy, reference::conv2d(v, w, b, window)); }, x, g.x) <
          kSlopeTolerance);
    CHECK(slope_error([&](const Array& v) { return dot(dy, reference::conv2d(x, v, b, window)); }, w, g.w) <
          kSlopeTolerance);
    CHECK(slope_error([&](const Array& v) { return dot(dy, reference::conv2d(x, w, v, window)); }, b, g.b) <
          kSlopeTolerance);
  }
}

TEST_CASE("reference: pooling, relu and their fusion have their slopes") {
  Mt19937 generator(2);
  const Array x = random_array({2, 3, 7, 6}, generator);
  for (const Window2d& window : {Window2d{2, 2, 2, 2, 0, 0}, Window2d{3, 3, 2, 2, 1, 1}}) {
    const Array dy = random_array(reference::max_pool2d(x, window).shape, generator);
    CHECK(slope_error([&](const Array& v) { return dot(dy, reference::max_pool2d(v, window)); }, x,
                      reference::max_pool2d_backward(x, dy, window)) < kSlopeTolerance);
  }
  for (const bool padding : {true, false}) {
    const Window2d window = {3, 2, 2, 1, 1, 1};
    const Array dy = random_array(reference::avg_pool2d(x, window, padding).shape, generator);
    CHECK(slope_error([&](const Array& v) { return dot(dy, reference::avg_pool2d(v, window, padding)); }, x,
                      reference::avg_pool2d_backward(x, dy, window, padding)) < kSlopeTolerance);
  }
  const Array mean_dy = random_array({2, 3, 3, 4}, generator);
  CHECK(slope_error([&](const Array& v) { return dot(mean_dy, reference::adaptive_avg_pool2d(v, 3, 4)); }, x,
                    reference::adaptive_avg_pool2d_backward(x, mean_dy)) < kSlopeTolerance);
  const Array dx = random_array(x.shape, generator);
  CHECK(slope_error([&](const Array& v) { return dot(dx, reference::relu(v)); }, x, reference::relu_backward(x, dx)) <
        kSlopeTolerance);

  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  const Array w = random_array({4, 3, 3, 3}, generator), b = random_array({4}, generator);
  const Array dy = random_array(reference::conv_pool_relu(x, w, b, conv, pool).shape, generator);
  const auto g = reference::conv_pool_relu_backward(x, w, b, dy, conv, pool);
  const auto value = [&](const Array& image, const Array& weights, const Array& bias) {
    return dot(dy, reference::conv_pool_relu(image, weights, bias, conv, pool));
  };
  CHECK(slope_error([&](const Array& v) { return value(v, w, b); }, x, g.x) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return value(x, v, b); }, w, g.w) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return value(x, w, v); }, b, g.b) < kSlopeTolerance);
}

TEST_CASE("reference: the first of equal values takes the gradient of a window") {
  Array x({1, 1, 2, 2}), dy({1, 1, 1, 1});
  x.values = {1, 3, 3, 3};
  dy.values = {7};
  CHECK(reference::max_pool2d_backward(x, dy, {2, 2, 2, 2, 0, 0}).values == std::vector<double>{0, 7, 0, 0});
  Array zero({1});
  CHECK(reference::relu_backward(zero, zero).values == std::vector<double>{0});
}

TEST_CASE("reference: linear, log_softmax and the losses have their slopes") {
  Mt19937 generator(3);
  const Array x = random_array({3, 5}, generator), w = random_array({4, 5}, generator),
              b = random_array({4}, generator);
  const Array dy = random_array({3, 4}, generator), dx = random_array({3, 5}, generator);
  const auto g = reference::linear_backward(x, w, dy);
  CHECK(slope_error([&](const Array& v) { return dot(dy, reference::linear(v, w, b)); }, x, g.x) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return dot(dy, reference::linear(x, v, b)); }, w, g.w) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return dot(dy, reference::linear(x, w, v)); }, b, g.b) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return dot(dx, reference::log_softmax(v)); }, x,
                    reference::log_softmax_backward(x, dx)) < kSlopeTolerance);
  const std::vector<std::int64_t> labels = {4, 0, 2};
  CHECK(slope_error([&](const Array& v) { return reference::nll_loss(v, labels); }, x,
                    reference::nll_loss_backward(x, labels)) < kSlopeTolerance);
  CHECK(slope_error([&](const Array& v) { return reference::mse_loss(v, dx); }, x,
                    reference::mse_loss_backward(x, dx)) < kSlopeTolerance);
}

TEST_CASE("reference: dropout and batch norm have their slopes") {
  Mt19937 generator(4);
  const Array x = random_array({3, 2, 4, 3}, generator), dy = random_array(x.shape, generator);
  std::vector<std::uint8_t> mask(x.values.size());
  generator.bernoulli(mask, 0.6);
  CHECK(slope_error([&](const Array& v) { return dot(dy, reference::dropout(v, mask, 0.4)); }, x,
                    reference::dropout(dy, mask, 0.4)) < kSlopeTolerance);
  for (const bool training : {true, false}) {
    reference::BatchNorm norm = {random_array({2}, generator), random_array({2}, generator),
                                 random_array({2}, generator), Array({2}), training};
    norm.running_var.values = {0.5, 2};
    const auto g = reference::batch_norm2d_backward(x, norm, dy);
    const auto value = [&](const Array& image, const Array& weight, const Array& bias) {
      reference::BatchNorm changed = norm;
      changed.weight = weight, changed.bias = bias;
      return dot(dy, reference::batch_norm2d(image, changed));
    };
    CHECK(slope_error([&](const Array& v) { return value(v, norm.weight, norm.bias); }, x, g.x) < kSlopeTolerance);
    CHECK(slope_error([&](const Array& v) { return value(x, v, norm.bias); }, norm.weight, g.w) < kSlopeTolerance);
    CHECK(slope_error([&](const Array& v) { return value(x, norm.weight, v); }, norm.bias, g.b) < kSlopeTolerance);
  }
}

TEST_CASE("reference: the comparison sees a wrong number, shape and layout") {
  Mt19937 generator(5);
  const Array array = random_array({2, 8, 3, 3}, generator);
  const duet::Tensor same = to_tensor(array);
  CHECK(relative_error(same, array) == 0);
  const duet::Variable blocked = duet::ops::to_layout(same, duet::Layout::blocked8);
  CHECK(relative_error(blocked.value(), array) == 0);
  CHECK(std::isinf(relative_error(same.reshape({2, 72}), array)));
  same.data<float>()[17] += 0.01f;
  CHECK(relative_error(same, array) > 0.009);
  same.data<float>()[17] = NAN;
  CHECK(std::isinf(relative_error(same, array)));
}
