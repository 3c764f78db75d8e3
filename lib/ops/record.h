// Shared by the operators: putting a result on the tape.
#pragma once

#include <initializer_list>
#include <ostream>
#include <utility>

#include "lib/autograd/check_finite.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// Whether an operator with these inputs must be recorded.
inline bool recorded(std::initializer_list<const Variable*> inputs) {
  if (!grad_enabled()) return false;
  for (const Variable* input : inputs)
    if (input->requires_grad()) return true;
  return false;
}

/// For CheckFinite: the result, and those inputs that no operator made.
inline void require_finite_step(const Node& op, const Tensor& result, std::initializer_list<const Variable*> inputs) {
  int number = 0;
  for (const Variable* input : inputs) {
    ++number;
    if (!input->defined()) continue;
    const Node* const from = input->edge().node.get();
    if (from == nullptr) {
      require_finite(input->value(), op.name(), ": argument ", number);
    } else if (dynamic_cast<const Leaf*>(from) != nullptr) {
      require_finite(input->value(), op.name(), ": argument ", number, " (", from->name(), ")");
    }
  }
  require_finite(result, op.name(), ": the result");
}

/// The variable of an operator's result: on the tape behind a new node of type N, if `inputs` ask for gradients, else a
/// constant. `fill` sets what the node must keep.
template <class N, class Fill>
Variable record(const Tensor& result, std::initializer_list<const Variable*> inputs, Fill fill) {
  if (!recorded(inputs)) return Variable(result);
  auto node = make_pooled<N>();
  for (const Variable* input : inputs) node->add_edge(input->defined() ? input->edge() : Edge{});
  fill(*node);
  if (checks_finite()) require_finite_step(*node, result, inputs);
  return Variable(result, std::move(node));
}

/// Throws DeviceError unless all defined inputs lie on one device.
inline void require_one_device(const char* op, std::initializer_list<const Variable*> inputs) {
  const Variable* first = nullptr;
  for (const Variable* input : inputs) {
    if (!input->defined()) continue;
    if (first == nullptr) first = input;
    require<DeviceError>(input->device() == first->device(), op, ": arguments lie on ", first->device(), " and ",
                         input->device(), ", expected one device");
  }
}

/// A variable's shape, put into words only when a message is: a step that checks its arguments allocates nothing.
struct ShapeText {
  const Variable& variable;
};
inline std::ostream& operator<<(std::ostream& out, const ShapeText& text) {
  return text.variable.defined() ? out << text.variable.shape() : out << "of nothing";
}

inline void require_floats(const char* op, const Variable& x) {
  require<ShapeError>(x.defined(), op, ": got nothing, expected a tensor");
  require<ShapeError>(x.value().dtype() == DType::f32, op, ": got ", name(x.value().dtype()), ", expected f32");
}

inline void require_rank(const char* op, const Variable& x, int rank, const char* shape) {
  require<ShapeError>(x.defined() && x.shape().rank() == rank, op, ": got shape ", ShapeText{x}, ", expected ", shape);
  require_floats(op, x);
}

}  // namespace duet::ops
