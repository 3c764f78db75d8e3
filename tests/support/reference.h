// Every operator once more, as plain loops in double: what the operators' values and gradients are compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/random.h"
#include "lib/tensor.h"

namespace duet_test {

/// Row-major numbers with a shape.
struct Array {
  duet::Shape shape;
  std::vector<double> values;

  Array() = default;
  explicit Array(const duet::Shape& size) : shape(size), values(static_cast<std::size_t>(size.count()), 0.0) {}
  double& operator[](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
  /// Element (a, b, c, d) of a rank-4 array.
  double& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return (*this)[((a * shape[1] + b) * shape[2] + c) * shape[3] + d];
  }
  double at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return (*this)[((a * shape[1] + b) * shape[2] + c) * shape[3] + d];
  }
};

/// Uniform floats in [-1, 1).
Array random_array(const duet::Shape& shape, duet::Mt19937& generator);
/// Multiples of 1 / denominator in [-limit, limit] / denominator: sums of their products are exact in float, and equal
/// values are common.
Array random_grid(const duet::Shape& shape, int limit, int denominator, duet::Mt19937& generator);
/// An f32 tensor in the plain layout.
duet::Tensor to_tensor(const Array& array);

namespace reference {

/// Gradients of an operator's arguments, in the order of the arguments.
struct Gradients {
  Array x, w, b;
};

/// w (K, C / groups, R, S): the shapes give the groups.
Array conv2d(const Array& x, const Array& w, const Array& b, const duet::Window2d& window);
Gradients conv2d_backward(const Array& x, const Array& w, const Array& dy, const duet::Window2d& window);

/// Ties go to the first maximum in row-major order.
Array max_pool2d(const Array& x, const duet::Window2d& window);
Array max_pool2d_backward(const Array& x, const Array& dy, const duet::Window2d& window);

Array avg_pool2d(const Array& x, const duet::Window2d& window, bool count_include_pad);
Array avg_pool2d_backward(const Array& x, const Array& dy, const duet::Window2d& window, bool count_include_pad);
Array adaptive_avg_pool2d(const Array& x, std::int64_t height, std::int64_t width);
Array adaptive_avg_pool2d_backward(const Array& x, const Array& dy);

Array relu(const Array& x);
Array relu_backward(const Array& x, const Array& dy);

/// Its own backward.
Array dropout(const Array& x, const std::vector<std::uint8_t>& mask, double p);

Array linear(const Array& x, const Array& w, const Array& b);
Gradients linear_backward(const Array& x, const Array& w, const Array& dy);

Array log_softmax(const Array& x);
Array log_softmax_backward(const Array& x, const Array& dy);

double nll_loss(const Array& x, const std::vector<std::int64_t>& labels);
Array nll_loss_backward(const Array& x, const std::vector<std::int64_t>& labels);

double mse_loss(const Array& x, const Array& target);
Array mse_loss_backward(const Array& x, const Array& target);

Array add(const Array& a, const Array& b);
Array mul(const Array& a, const Array& b);
/// Along dimension 1.
Array concat(const std::vector<Array>& parts);

Array softmax(const Array& x);
Array softmax_backward(const Array& x, const Array& dy);

/// Cross-entropy of logits, with label smoothing.
double cross_entropy(const Array& x, const std::vector<std::int64_t>& labels, double smoothing);
Array cross_entropy_backward(const Array& x, const std::vector<std::int64_t>& labels, double smoothing);

struct BatchNorm {
  Array weight, bias, running_mean, running_var;  // (C)
  bool training = true;
  double momentum = 0.1, eps = 1e-5;
};
/// Moves the running statistics in training.
Array batch_norm2d(const Array& x, BatchNorm& norm);
/// The running statistics are those before the forward.
Gradients batch_norm2d_backward(const Array& x, const BatchNorm& norm, const Array& dy);

Array conv_pool_relu(const Array& x, const Array& w, const Array& b, const duet::Window2d& conv,
                     const duet::Window2d& pool);
Gradients conv_pool_relu_backward(const Array& x, const Array& w, const Array& b, const Array& dy,
                                  const duet::Window2d& conv, const duet::Window2d& pool);

}  // namespace reference

/// The largest difference between the tensor (any layout) and the array, divided by the array's largest entry (1 if all
/// are zero). Infinite when shapes differ or a number of either is not finite.
double relative_error(const duet::Tensor& tensor, const Array& expected);

}  // namespace duet_test
