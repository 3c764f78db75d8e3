// Shared by the operators: checks of arguments, and putting a result on the tape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <span>
#include <tuple>
#include <utility>

#include "lib/autograd/check_finite.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/saved_tensor.h"
#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// The node of an operator. `Gradient` keeps what backward needs: kName, backward(), perhaps kStartsFromOne or kIsView,
/// and where it has SavedTensors, saved(), which ties all of them.
template <class Gradient>
struct OpNode final : Node {
  explicit OpNode(Gradient kept) : gradient(std::move(kept)) {}
  const char* name() const override { return Gradient::kName; }
  bool starts_from_one() const override {
    return requires { Gradient::kStartsFromOne; };
  }
  bool is_view() const override {
    return requires { Gradient::kIsView; };
  }
  void reached() override {
    if constexpr (requires { gradient.saved(); })
      std::apply([](const auto&... saved) { (saved.require_unmodified(Gradient::kName), ...); }, gradient.saved());
  }
  void backward(const Gradients& g) override { gradient.backward(g); }
  std::int64_t* divisor() override {
    if constexpr (requires { gradient.divisor; }) return gradient.divisor >= 0 ? &gradient.divisor : nullptr;
    return nullptr;
  }
  std::span<const float> block_sums(int) const override {
    if constexpr (requires { gradient.block_sums; })
      if (gradient.block_sums.defined()) return gradient.block_sums.template span<float>();
    return {};
  }
  void release() override { gradient = {}; }
  Gradient gradient;
};

/// Whether an operator with these inputs must be recorded.
inline bool recorded(std::span<const Variable* const> inputs) {
  if (!grad_enabled()) return false;
  for (const Variable* input : inputs)
    if (input->requires_grad()) return true;
  return false;
}

inline bool recorded(std::initializer_list<const Variable*> inputs) {
  return recorded(std::span(inputs.begin(), inputs.size()));
}

/// Describes how an operator combines the kinds of its arguments.
struct OperatorKind {
  bool linear = false;      // in the arguments that ask for gradients
  bool sums = false;        // over rows
  bool by_place = false;    // each element of the result is computed from those at its place
  bool product = false;     // of its two arguments
  bool reads = false;       // the values of its arguments for their gradients, or a number but 1 and -1
  bool affine = false;      // as linear, if the other arguments are the same on all devices
  bool adds = false;        // up, and divides by nothing
  bool reads_rows = false;  // of a tensor that is no argument on the tape
  bool mixes = false;       // samples of the batch: it has them in another dimension than its result, or adds them up
  unsigned divisor = 0;     // of a loss, else 0
};
/// The kinds (lib/autograd/node.h) of an operator's result.
unsigned kinds_of_result(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op);

template <class Gradient>
OperatorKind kind_of(const Gradient& gradient, unsigned divisor, bool mixes) {
  OperatorKind kind{.mixes = mixes, .divisor = divisor};
  if constexpr (requires { Gradient::kLinear; }) kind.linear = Gradient::kLinear;
  if constexpr (requires { gradient.linear; }) kind.linear = gradient.linear;
  if constexpr (requires { Gradient::kSums; }) kind.sums = Gradient::kSums;
  kind.by_place = requires { Gradient::kByPlace; };
  if constexpr (requires { Gradient::kAdds; }) kind.adds = Gradient::kAdds;
  if constexpr (requires { gradient.product; }) {
    kind.product = gradient.product;
    kind.affine = gradient.affine;
    kind.reads = Gradient::kReads && gradient.number != 1 && gradient.number != -1;
  }
  kind.reads_rows = requires { Gradient::kReadsRows; };
  return kind;
}

/// For CheckFinite: the result, and those inputs that no operator made.
inline void require_finite_step(const Node& op, const Tensor& result, std::span<const Variable* const> inputs) {
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

/// Says so if tensors of a part of a batch, whose results have the rows of one of them, are of other rows of it or of
/// other parts of batches: rows of different numbers then meet on other numbers of devices.
void require_same_rows(const char* op, const Rows& a, const Rows& b);
/// Says so if gradients of a parameter among the inputs would be sums over a part of a batch, but not by its blocks.
void require_blocks(const char* op, std::span<const Variable* const> inputs);

/// Returns the variable of an operator's result off the tape.
Variable constant_of(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op);

/// The variable of an operator's result: on the tape behind an OpNode with what keep() returns, if `inputs` ask for
/// gradients, else a constant. `normaliser`: of a loss. What keep() returns may have a kLinear or `linear`, kSums and
/// kByPlace: see OperatorKind, also for `mixes`.
template <class Keep>
Variable record(const Tensor& result, std::span<const Variable* const> inputs, Keep keep, unsigned normaliser = 0,
                bool mixes = false) {
  constexpr bool kSums = requires { decltype(keep())::kSums; };
  if (!recorded(inputs)) return constant_of(result, inputs, {.sums = kSums, .mixes = mixes, .divisor = normaliser});
  auto node = make_pooled<OpNode<decltype(keep())>>(keep());
  for (const Variable* input : inputs) node->add_edge(input->defined() ? input->edge() : Edge{});
  node->set_kinds(kinds_of_result(result, inputs, kind_of(node->gradient, normaliser, mixes)));
  if (checks_finite()) require_finite_step(*node, result, inputs);
  require_blocks(node->name(), inputs);
  return Variable(result, std::move(node));
}

template <class Keep>
Variable record(const Tensor& result, std::initializer_list<const Variable*> inputs, Keep keep, unsigned normaliser = 0,
                bool mixes = false) {
  return record(result, std::span(inputs.begin(), inputs.size()), std::move(keep), normaliser, mixes);
}

/// The stamp of x for a result that keeps the places of its samples. Behind the first dimension these are known if the
/// result has as many there, or if those of a tensor that has lost them are in its rows.
inline Rows stamp_like(const Tensor& x, const Shape& shape) {
  const Rows& stamp = x.stamp();
  if (stamp.outer == 0) return stamp;
  const int d = stamp.dimension(x.shape()), same = std::max(d, 0);
  if (same >= shape.rank() || shape[same] != x.size(same)) return {};
  return d < 0 ? stamp : stamp.moved(x.shape(), shape, d);
}

/// Room for an operator's result, with the stamp of x.
inline Tensor result_of(const Variable& x, const Shape& shape, Layout layout = Layout::plain) {
  Tensor result = empty(shape, DType::f32, x.device(), layout);
  result.set_stamp(stamp_like(x.value(), shape));
  return result;
}

/// An argument that may be undefined.
inline Tensor value_or_none(const Variable& x) { return x.defined() ? x.value() : Tensor(); }

/// How an error about devices ends.
inline constexpr const char kMakeThere[] = "make constants there, by zeros_like(x, shape) or t.to(x.device())";

/// Whether x is a constant on cpu:0, where programs make tensors, and `device` is a CPU device, which shares its
/// memory.
inline bool is_shared(const Variable& x, Device device) {
  return device.kind == DeviceKind::cpu && x.device() == Device{} && !recorded({&x});
}

/// Returns the CPU device that an operator's inputs have in common if those that is_shared() names become on() it;
/// nothing if all defined inputs lie on one device already. Throws DeviceError for inputs on other devices.
std::optional<Device> device_to_share(const char* op, std::initializer_list<const Variable*> inputs);

/// Returns x as a tensor of `device` in the same memory if it is_shared(), else x itself.
inline Variable on(Device device, const Variable& x) {
  const bool moves = x.defined() && x.device() != device && is_shared(x, device);
  return moves ? Variable::constant(x.value().alias(device), x.of_batch_mean()) : x;
}
inline Tensor on(Device device, const Tensor& x) {
  return x.device() == Device{} && device.kind == DeviceKind::cpu ? x.alias(device) : x;
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

/// The number of dimension d, which counts from the end if it is negative.
inline int dimension_of(const char* op, const Shape& shape, int d) {
  const int at = d < 0 ? d + shape.rank() : d;
  require<ShapeError>(at >= 0 && at < shape.rank(), op, ": dimension ", d, " of shape ", shape, ", expected ",
                      -shape.rank(), " to ", shape.rank() - 1);
  return at;
}

/// The edge of the gradient of log_softmax's argument, if y is its result and on the tape; else null. A loss whose
/// gradient is known at the argument sends it there: gradients add up, so y may have other consumers.
const Edge* log_softmax_argument(const Variable& y);

}  // namespace duet::ops
