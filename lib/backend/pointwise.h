// Functions of single elements, and loops over tensors of which each goes on by strides of its own. Without functions:
// the kernels of each instruction set include this header.
#pragma once

#include <cstdint>

namespace duet {

/// f(a, b, c). A gradient's c is the gradient of the function's result.
enum class Pointwise : int {
  copy,                 // a
  add,                  // a + b
  sub,                  // a - b
  mul,                  // a * b
  div,                  // a / b
  div_right_gradient,   // of b in a / b
  exp,                  // exp(a)
  exp_gradient,         // a: the result
  log,                  // log(a)
  log_gradient,         // a: the argument
  sqrt,                 // sqrt(a)
  sqrt_gradient,        // a: the result
  sigmoid,              // 1 / (1 + exp(-a))
  sigmoid_gradient,     // a: the result
  tanh,                 // tanh(a)
  tanh_gradient,        // a: the result
  gelu,                 // a * (1 + erf(a / sqrt(2))) / 2
  gelu_gradient,        // a: the argument
  leaky_relu,           // a if it is positive, else a * b
  leaky_relu_gradient,  // a: the argument, b: the slope
  // Losses, by a: the prediction and b: the target.
  absolute_error,
  absolute_error_gradient,
  cross_entropy,  // of probabilities of one class
  cross_entropy_gradient,
  logit_cross_entropy,  // of logits of one class
  logit_cross_entropy_gradient,
};
inline constexpr int kPointwiseFunctions = static_cast<int>(Pointwise::logit_cross_entropy_gradient) + 1;

/// Nested loops, the first outermost, over several tensors: by how many elements each goes on in which loop.
struct Walk {
  static constexpr int kLoops = 6, kTensors = 4;
  int loops = 1;
  std::int64_t sizes[kLoops] = {};
  std::int64_t strides[kTensors][kLoops] = {};
};

}  // namespace duet
