// An operator of a user's own, written over tensors outside duet, and a check of gradients by differences.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/tensor.h"

namespace duet::ops {

using Tensors = std::vector<Tensor>;

/// An operator as functions: see custom().
struct CustomCalls {
  const char* name;
  bool sums_rows, linear;
  std::function<Tensor(const Tensors& inputs)> forward;
  std::function<Tensors(const Tensor& dy, const Tensors& inputs, const Tensor& result)> backward;
};
Variable run_custom(const CustomCalls& calls, std::span<const Variable> inputs);

/// Runs an operator of one's own and puts it on the tape. Op is a struct with
///
///   static constexpr const char* kName = "swish";  // for errors
///   static constexpr bool kSumsRows = true;
///   Tensor forward(const ops::Tensors& inputs);
///   ops::Tensors backward(const Tensor& dy, const ops::Tensors& inputs, const Tensor& result);
///
/// forward returns the result in memory of its own; backward the gradient of each input, undefined for one that has
/// none. Inputs, result and dy are plain float32 tensors on one device; of a CPU data<float>() is the memory, on CUDA
/// work belongs on the stream backend(dy).stream(dy.device()), a cudaStream_t. A result or gradient on cpu:0, as
/// empty(shape) makes it, serves every CPU device. What forward keeps in members of the struct is there in backward.
///
/// The result has the stamp of the inputs' batch if it has its rows. Where kSumsRows is true, the gradient of an input
/// that is not part of the batch, a parameter, comes with a row for each of dy's in front, (N, ...), and duet adds
/// these up: parameters have equal bits on any number of devices if a row of the result and of the gradients depends on
/// its own row only. Where it is false, each gradient has its input's shape; a sum over rows in it is equal to
/// rounding. An operator of a mean over the batch, such as a loss, may also have `static constexpr bool kLinear =
/// true`; without it backward refuses its result if several devices have a part of the batch each. One number of rows
/// is taken for a mean over them.
///
/// Throws ShapeError that names the operator where a result or gradient has another shape, type or layout, and
/// UsageError where inputs or result were modified between forward and backward.
template <class Op>
Variable custom(Op op, std::initializer_list<Variable> inputs) {
  bool linear = false;
  if constexpr (requires { Op::kLinear; }) linear = Op::kLinear;
  const auto kept = std::make_shared<Op>(std::move(op));
  return run_custom(
      {Op::kName, Op::kSumsRows, linear, [kept](const Tensors& in) { return kept->forward(in); },
       [kept](const Tensor& dy, const Tensors& in, const Tensor& y) { return kept->backward(dy, in, y); }},
      std::span<const Variable>(inputs.begin(), inputs.size()));
}

struct GradientCheck {
  double step = 1e-2;       // to either side of each element
  double tolerance = 2e-3;  // of the largest gradient of an input
};

/// Compares the gradients of f for these float32 inputs, of all elements, with slopes by central differences, as
/// torch.autograd.gradcheck does in double: in float keep inputs within about 1, and away from kinks by more than the
/// step. Throws NumericError that names input and element, with the gradient and the slope.
void check_gradients(const std::function<Variable(const std::vector<Variable>&)>& f, const Tensors& inputs,
                     const GradientCheck& options = {});

}  // namespace duet::ops
