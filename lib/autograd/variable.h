// A tensor with the record of how it was computed.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/autograd/node.h"
#include "lib/tensor.h"

namespace duet {

/// A handle to a value on the tape; copies are the same variable. A tape belongs to the thread that records it;
/// distinct tapes may be recorded and run on distinct threads.
class Variable {
 public:
  Variable() = default;
  /// A constant, or with `requires_grad` a leaf whose gradient is kept.
  Variable(Tensor value, bool requires_grad = false);  // NOLINT(google-explicit-constructor)
  /// Output number `output` of `node`.
  Variable(Tensor value, std::shared_ptr<Node> node, int output = 0);

  bool defined() const { return state_ != nullptr; }
  const Tensor& value() const { return state_->value; }
  const Shape& shape() const { return value().shape(); }
  /// The size of dimension `d`; negative `d` counts from the end.
  std::int64_t size(int d) const { return shape()[d]; }
  Device device() const { return value().device(); }
  bool requires_grad() const { return state_ && state_->edge.node != nullptr; }
  /// The edge along which backward sends the gradient of this variable; its node is null for constants.
  const Edge& edge() const { return state_->edge; }
  /// The gradient that backward left in a leaf; undefined before.
  Tensor grad() const;
  void zero_grad();

  /// Computes the gradients of all leaves below this scalar, starting from 1, and frees the tape. Throws
  /// ShapeError when this is not one element, Error when it does not require a gradient.
  void backward() const;
  /// Runs backward from a variable of any shape, starting from `gradient`.
  void backward(const Tensor& gradient) const;
  /// Returns the one element of a scalar, and waits for its device. The number isn't on the tape: if it's a mean over a
  /// rank's own rows, each rank has another one. As a factor of a loss that gives wrong gradients without an error: sum
  /// it over the ranks first (ProcessGroup::all_reduce, docs/howto/ddp.md).
  float item() const;
  /// Returns a variable with the same value that is not on the tape. If this is a mean over a device's rows of a batch,
  /// backward of values that other devices' means would change throws UsageError.
  Variable detach() const;
  /// Whether this is computed from a mean over a device's rows of a batch, or a constant that was.
  bool of_batch_mean() const;
  /// Returns the constant `value`, of_batch_mean() if `of_mean`.
  static Variable constant(Tensor value, bool of_mean);

 private:
  struct State {
    Tensor value;
    Edge edge;
    bool of_mean = false;  // of a constant
  };
  std::shared_ptr<State> state_;
};

/// Makes a tensor of zeros, or of a value, on x's device: an initial state or a mask in a module's `forward`. It has
/// x's stamp if it has as many rows as x. A tensor from other values comes there by `from_values(...).to(x.device())`.
Tensor zeros_like(const Variable& x, const Shape& shape, DType dtype = DType::f32);
Tensor full_like(const Variable& x, const Shape& shape, float value);

}  // namespace duet
