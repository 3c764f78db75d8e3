// Arithmetic with broadcasting, and functions of single elements.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

/// A function of one argument and its gradient, which reads the argument or the result.
struct Unary {
  const char* name;
  Pointwise gradient;
  bool reads_result;
};
constexpr Unary unary_of(Pointwise f) {
  switch (f) {
    case Pointwise::exp: return {"exp", Pointwise::exp_gradient, true};
    case Pointwise::log: return {"log", Pointwise::log_gradient, false};
    case Pointwise::sqrt: return {"sqrt", Pointwise::sqrt_gradient, true};
    case Pointwise::sigmoid: return {"sigmoid", Pointwise::sigmoid_gradient, true};
    case Pointwise::tanh: return {"tanh", Pointwise::tanh_gradient, true};
    case Pointwise::gelu: return {"gelu", Pointwise::gelu_gradient, false};
    default: return {"leaky_relu", Pointwise::leaky_relu_gradient, false};
  }
}

template <Pointwise kFunction>
struct UnaryGradient {
  static constexpr const char* kName = unary_of(kFunction).name;
  void backward(const Gradients& g) const {
    const Shape& shape = kept.shape();
    const Tensor& dx = g.place(0, shape, kept.device(), kept.layout());
    backend(kept).pointwise(unary_of(kFunction).gradient, shape,
                            {broadcast(kept, shape), {}, broadcast(g.outputs[0], shape), number}, broadcast(dx, shape));
  }
  auto saved() const { return std::tie(kept); }
  SavedTensor kept;
  float number = 0;
};

/// `number`: the function's second argument.
template <Pointwise kFunction>
Variable unary(const Variable& x, float number = 0) {
  constexpr Unary kUnary = unary_of(kFunction);
  require_floats(kUnary.name, x);
  const Shape& shape = x.shape();
  const Tensor y = result_of(x, shape, x.value().layout());
  backend(y).pointwise(kFunction, shape, {broadcast(x.value(), shape), {}, {}, number}, broadcast(y, shape));
  return record(y, {&x}, [&] {
    return UnaryGradient<kFunction>{kUnary.reads_result ? SavedTensor(y, "result") : SavedTensor(x, "argument"),
                                    number};
  });
}

constexpr const char* name_of(Pointwise f) {
  return f == Pointwise::add ? "add" : f == Pointwise::sub ? "sub" : f == Pointwise::mul ? "mul" : "div";
}

/// One side of a function of two; without a shape: a number.
struct Side {
  Shape own, padded;  // padded: with ones for the dimensions that it lacks
  /// It has no rows: its gradient is a sum over those of the result, by Note [Sums over samples] in backend.h.
  bool sums_rows = false;
};

Side side_of(const Variable& x, const Tensor& y) {
  if (!x.defined()) return {};
  Side side{.own = x.shape(), .padded = {}};
  for (int d = x.shape().rank(); d < y.shape().rank(); ++d) side.padded.append(1);
  for (const std::int64_t size : x.shape()) side.padded.append(size);
  if (y.shape().rank() == 0 || side.padded[0] != 1) return side;
  // Where a device has one row of a batch, a parameter is what has no stamp.
  side.sums_rows =
      y.size(0) != 1 || x.shape().rank() < y.shape().rank() || (y.stamp().stamped() && !x.value().stamp().stamped());
  return side;
}

template <Pointwise kFunction>
struct BinaryGradient {
  static constexpr const char* kName = name_of(kFunction);
  static constexpr bool kReads = kFunction == Pointwise::mul || kFunction == Pointwise::div, kByPlace = true,
                        kDivides = kFunction == Pointwise::div;

  void backward(const Gradients& g) const {
    for (std::size_t i = 0; i < 2; ++i)
      if (g.wanted(i)) backward_of(i, g);
  }
  auto saved() const { return std::tie(a, b); }

  SavedTensor a, b;  // unless kReads is false
  Side sides[2];
  Rows stamp;
  float number = 0;
  bool linear = false, affine = false, product = false;  // see OperatorKind

 private:
  void backward_of(std::size_t i, const Gradients& g) const {
    const Side& side = sides[i];
    const Tensor& dy = g.outputs[0];
    const bool whole = !side.sums_rows && side.padded == dy.shape();
    Tensor each = dy;  // the gradient at each place of the result
    if (kReads || (kFunction == Pointwise::sub && i == 1)) {
      each = whole ? g.place(i, dy.shape(), dy.device(), dy.layout()) : empty(dy.shape(), DType::f32, dy.device());
      write(i, dy, each);
    }
    if (whole) {
      g.inputs[i] = each;
      return;
    }
    each.set_stamp(stamp);
    backend(dy).sum(each, side.sums_rows, g.place(i, side.own, dy.device()).reshape(side.padded));
  }

  void write(std::size_t i, const Tensor& dy, const Tensor& each) const {
    const Shape& shape = dy.shape();
    const Strided gradient = broadcast(dy, shape), left = broadcast(a, shape), right = broadcast(b, shape);
    const auto run = [&](Pointwise f, const PointwiseInputs& inputs) {
      backend(dy).pointwise(f, shape, inputs, broadcast(each, shape));
    };
    if (kFunction == Pointwise::sub) return run(Pointwise::mul, {gradient, {}, {}, -1});
    if (kFunction == Pointwise::mul) return run(Pointwise::mul, {gradient, i == 0 ? right : left, {}, number});
    if (i == 0) return run(Pointwise::div, {gradient, right, {}, number});
    run(Pointwise::div_right_gradient, {left, right, gradient, number});
  }
};

/// The shape in which dimensions of size 1, and those that one side lacks in front, are repeated.
Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  Shape shape;
  for (int d = -std::max(a.rank(), b.rank()); d < 0; ++d) {
    const std::int64_t left = -d <= a.rank() ? a[d] : 1, right = -d <= b.rank() ? b[d] : 1;
    require<ShapeError>(left == right || left == 1 || right == 1, op, ": shapes ", a, " and ", b,
                        " differ in dimension ", d, ", expected equal sizes or 1");
    shape.append(left == 1 ? right : left);
  }
  return shape;
}

/// The stamp of the side whose rows a result of this shape has.
Rows stamp_of(const char* op, const Shape& shape, const Variable& a, const Variable& b) {
  Rows stamp;
  for (const Variable* const x : {&a, &b}) {
    const Rows own = x->defined() ? x->value().stamp() : Rows{};
    const bool has_rows = own.stamped() && x->shape().rank() == shape.rank() && x->shape()[0] == shape[0];
    if (!has_rows && !(own.known() && !own.stamped() && x->shape() == shape)) continue;
    if (stamp.known()) require_same_rows(op, stamp, own);
    if (!stamp.stamped() && (has_rows || !stamp.known())) stamp = own;
  }
  return stamp;
}

/// Whether f is linear in the sides that ask for gradients. A factor of the batch's own may differ from device to
/// device.
template <Pointwise kFunction>
bool is_linear(const Variable& a, const Variable& b) {
  if (kFunction == Pointwise::add || kFunction == Pointwise::sub) return true;
  const auto factor = [](const Variable& x) {
    return !x.defined() || (!x.requires_grad() && !x.value().stamp().stamped());
  };
  return factor(b) || (kFunction == Pointwise::mul && factor(a));
}

/// Whether repeated elements of one side meet other samples of the other side.
bool mixes_rows(const Variable& a, const Variable& b) {
  const int left = a.value().stamp().dimension(a.shape()), right = b.value().stamp().dimension(b.shape());
  return left >= 0 && right >= 0 && left - a.shape().rank() != right - b.shape().rank();
}

template <Pointwise kFunction>
Variable binary(const Operand& left_side, const Operand& right_side) {
  using Gradient = BinaryGradient<kFunction>;
  constexpr const char* kOp = Gradient::kName;
  const Variable &left = left_side.tensor, &right = right_side.tensor;
  require<UsageError>(!left_side.is_number || !right_side.is_number, kOp, ": got two numbers, expected a tensor");
  for (const Operand* const side : {&left_side, &right_side})
    if (!side->is_number) require_floats(kOp, side->tensor);
  if (const auto device = device_to_share(kOp, {&left, &right}))
    return binary<kFunction>(on(*device, left), on(*device, right));
  const auto number = static_cast<float>(left_side.is_number ? left_side.number : right_side.number);
  const Variable& first = left.defined() ? left : right;
  const bool both = left.defined() && right.defined();
  const Shape shape = both ? broadcast_shape(kOp, left.shape(), right.shape()) : first.shape();
  const Rows stamp = stamp_of(kOp, shape, left, right);
  const auto fits = [&](const Variable& x) {  // no element of it is repeated, and it has rows where the result has
    return !x.defined() || (x.shape() == shape && (!stamp.stamped() || shape[0] != 1 || x.value().stamp().stamped()));
  };
  const bool alike = fits(left) && fits(right);
  const Layout layout = alike ? first.value().layout() : Layout::plain;
  const Variable a = left.defined() ? to_layout(left, layout) : left;
  const Variable b = right.defined() ? to_layout(right, layout) : right;
  Tensor y = empty(shape, DType::f32, first.device(), layout);
  y.set_stamp(stamp);
  if (kFunction == Pointwise::add && both && alike) {
    backend(y).add(a.value(), b.value(), y);
  } else {
    backend(y).pointwise(kFunction, shape,
                         {broadcast(value_or_none(a), shape), broadcast(value_or_none(b), shape), {}, number},
                         broadcast(y, shape));
  }
  const auto gradient = [&] {
    const auto kept = [](const Variable& x, const char* what) {
      return Gradient::kReads ? SavedTensor(x, what) : SavedTensor();
    };
    Gradient made{kept(a, "left argument"), kept(b, "right argument"), {side_of(a, y), side_of(b, y)}, stamp, number};
    made.linear = is_linear<kFunction>(a, b);
    made.affine = !b.requires_grad() || (!Gradient::kDivides && !a.requires_grad());
    made.product = Gradient::kReads && (!Gradient::kDivides || (b.requires_grad() && is_free(b.edge().kinds())));
    return made;
  };
  return record(y, {&a, &b}, gradient, 0, both && mixes_rows(a, b));
}

}  // namespace

Variable add(const Operand& a, const Operand& b) { return binary<Pointwise::add>(a, b); }
Variable sub(const Operand& a, const Operand& b) { return binary<Pointwise::sub>(a, b); }
Variable mul(const Operand& a, const Operand& b) { return binary<Pointwise::mul>(a, b); }
Variable div(const Operand& a, const Operand& b) { return binary<Pointwise::div>(a, b); }

Variable exp(const Variable& x) { return unary<Pointwise::exp>(x); }
Variable log(const Variable& x) { return unary<Pointwise::log>(x); }
Variable sqrt(const Variable& x) { return unary<Pointwise::sqrt>(x); }
Variable sigmoid(const Variable& x) { return unary<Pointwise::sigmoid>(x); }
Variable tanh(const Variable& x) { return unary<Pointwise::tanh>(x); }
Variable gelu(const Variable& x) { return unary<Pointwise::gelu>(x); }
Variable leaky_relu(const Variable& x, double negative_slope) {
  return unary<Pointwise::leaky_relu>(x, static_cast<float>(negative_slope));
}

}  // namespace duet::ops
