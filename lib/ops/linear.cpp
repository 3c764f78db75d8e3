// Linear layers, alone, with relu and dropout, and with log_softmax; log_softmax and softmax; products of matrices.
#include <tuple>

#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

/// The gradients of the input, the weights and the bias.
struct Places {
  Tensor dx, dw, db;
};

/// The tensors that receive the wanted gradients of a linear layer; the others are undefined.
Places places_of(const Gradients& g, const Tensor& x, const Tensor& w) {
  const bool weights = g.wanted(1) || g.wanted(2);
  return {.dx = g.wanted(0) ? g.place(0, x.shape(), x.device()) : Tensor(),
          .dw = weights ? g.place(1, w.shape(), w.device()) : Tensor(),
          .db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor()};
}

struct LinearGradient {
  static constexpr const char* kName = "linear";
  void backward(const Gradients& g) const {
    Tensor dy = g.outputs[0];
    dy.set_stamp(x.stamp());
    const auto [dx, dw, db] = places_of(g, x, w);
    backend(x).linear_backward(dy, x, w, dx, dw, db);
  }
  auto saved() const { return std::tie(x, w); }
  SavedTensor x, w;
};

struct LinearReluDropoutGradient {
  static constexpr const char* kName = "linear_relu_dropout";
  void backward(const Gradients& g) const {
    const auto [dx, dw, db] = places_of(g, x, w);
    backend(x).linear_relu_dropout_backward(g.outputs[0], y, x, w, dx, dw, db, dropout);
  }
  auto saved() const { return std::tie(x, w, y); }
  SavedTensor x, w, y;
  DropoutKey dropout;
};

/// x (..., C) as (N, C), which the kernels take.
Tensor in_rows(const Tensor& x) { return x.reshape({vectors_of(x.shape()), x.size(-1)}); }

struct LogSoftmaxGradient {
  static constexpr const char* kName = "log_softmax";
  void backward(const Gradients& g) const {
    const Tensor& dx = g.place(0, y.shape(), y.device());
    backend(y).log_softmax_backward(in_rows(y), in_rows(g.outputs[0]), in_rows(dx));
  }
  auto saved() const { return std::tie(y); }
  SavedTensor y;
};

struct SoftmaxGradient {
  static constexpr const char* kName = "softmax";
  void backward(const Gradients& g) const {
    const Tensor& dx = g.place(0, y.shape(), y.device());
    backend(y).softmax_backward(in_rows(y), in_rows(g.outputs[0]), in_rows(dx));
  }
  auto saved() const { return std::tie(y); }
  SavedTensor y;
};

struct MatmulGradient {
  static constexpr const char* kName = "matmul";
  void backward(const Gradients& g) const {
    const Tensor& dy = g.outputs[0];
    if (g.wanted(0)) backend(dy).matmul(dy, false, b, true, g.place(0, a.shape(), a.device()));
    if (g.wanted(1)) backend(dy).matmul(a, true, dy, false, g.place(1, b.shape(), b.device()));
  }
  auto saved() const { return std::tie(a, b); }
  SavedTensor a, b;
};

/// Whether a product of matrices, of which dimension `summed` of b is added up, adds up samples of the batch, or has
/// those of b for each sample of a.
bool mixes_rows(const Tensor& a, const Tensor& b, int summed) {
  const int rows = a.stamp().dimension(a.shape()), others = b.stamp().dimension(b.shape()), last = a.shape().rank() - 1;
  return rows == last || others == summed || (rows >= 0 && others >= b.shape().rank() - 2);
}
/// Whether the last dimension of x, which has two or more, holds the samples of the batch.
bool mixes_rows(const Tensor& x) { return x.stamp().dimension(x.shape()) == x.shape().rank() - 1; }

/// Checks the arguments of a linear layer; gives room for its output. `vectors`: x may have more than two dimensions.
Tensor linear_output(const char* op, const Variable& x, const Variable& w, const Variable& b, bool vectors = false) {
  if (vectors && x.defined() && x.shape().rank() > 2) {
    require_floats(op, x);
  } else {
    require_rank(op, x, 2, vectors ? "(N, ..., I)" : "(N, I)");
  }
  require_rank(op, w, 2, "(O, I)");
  require<ShapeError>(x.shape()[-1] == w.shape()[1], op, ": input ", x.shape(), " and weights ", w.shape(),
                      " disagree about the number of inputs");
  require<ShapeError>(!b.defined() || b.shape() == Shape{w.shape()[0]}, op, ": bias ", ShapeText{b}, ", expected [",
                      w.shape()[0], "]");
  return result_of(x, x.shape().with(-1, w.shape()[0]));
}

/// Puts a linear layer on the tape. Its backward reads its arguments only, so the value may be anything.
Variable record_linear(const Tensor& value, const Variable& x, const Variable& w, const Variable& b) {
  const auto gradient = [&] { return LinearGradient{{x, "input"}, {w, "weight"}}; };
  return record(value, {&x, &w, &b}, gradient, 0, mixes_rows(x.value(), w.value(), 1));
}

/// Puts log_softmax with the result y on the tape. Of its argument no value is read.
Variable record_log_softmax(const Tensor& y, const Variable& x) {
  const auto gradient = [&] { return LogSoftmaxGradient{{y, "result"}}; };
  return record(y, {&x}, gradient, 0, mixes_rows(y));
}

}  // namespace

Variable linear(const Variable& input, const Variable& w, const Variable& b) {
  if (const auto device = device_to_share("linear", {&input, &w, &b}))
    return linear(on(*device, input), on(*device, w), on(*device, b));
  const Variable x = input.defined() ? to_plain(input) : input;
  const Tensor y = linear_output("linear", x, w, b, true);
  backend(y).linear_forward(x.value(), w.value(), value_or_none(b), y);
  return record_linear(y, x, w, b);
}

Variable linear_relu_dropout(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key) {
  if (checks_finite() || (x.defined() && x.value().stamp().outer > 0)) return dropout(relu(linear(x, w, b)), key);
  if (const auto device = device_to_share(LinearReluDropoutGradient::kName, {&x, &w, &b}))
    return linear_relu_dropout(on(*device, x), on(*device, w), on(*device, b), key);
  const Tensor y = linear_output(LinearReluDropoutGradient::kName, x, w, b);
  require_probability(LinearReluDropoutGradient::kName, key.p);
  backend(y).linear_relu_dropout_forward(x.value(), w.value(), value_or_none(b), y, key);
  return record(y, {&x, &w, &b}, [&] {
    return LinearReluDropoutGradient{{x, "input"}, {w, "weight"}, {y, "result"}, key};
  });
}

namespace {

/// Calls along_last(x) with dimension d of x as the last one.
template <class Run>
Variable along(const char* op, const Variable& input, int d, Run along_last) {
  require<ShapeError>(input.defined() && input.shape().rank() >= 2, op, ": got shape ", ShapeText{input},
                      ", expected (N, C)");
  require_floats(op, input);
  const Variable x = to_plain(input);
  const int last = x.shape().rank() - 1;
  if (dimension_of(op, x.shape(), d) == last) return along_last(x);
  return transpose(along_last(transpose(x, d, last)), d, last);
}

}  // namespace

Variable log_softmax(const Variable& input, int dimension) {
  return along(LogSoftmaxGradient::kName, input, dimension, [](const Variable& x) {
    const Tensor y = result_of(x, x.shape());
    if (y.count() > 0) backend(y).log_softmax_forward(in_rows(x.value()), in_rows(y));
    return record_log_softmax(y, x);
  });
}

Variable softmax(const Variable& input, int dimension) {
  return along(SoftmaxGradient::kName, input, dimension, [](const Variable& x) {
    const Tensor y = result_of(x, x.shape());
    if (y.count() > 0) backend(y).softmax_forward(in_rows(x.value()), in_rows(y));
    const auto gradient = [&] { return SoftmaxGradient{{y, "result"}}; };
    return record(y, {&x}, gradient, 0, mixes_rows(y));
  });
}

Variable matmul(const Variable& left, const Variable& right) {
  constexpr const char* kOp = MatmulGradient::kName;
  for (const Variable* const x : {&left, &right}) require_floats(kOp, *x);
  if (const auto device = device_to_share(kOp, {&left, &right})) return matmul(on(*device, left), on(*device, right));
  const Variable a = to_plain(left), b = to_plain(right);
  const int rank = a.shape().rank();
  bool fits = rank >= 2 && b.shape().rank() >= 2 && a.shape()[-1] == b.shape()[-2];
  if (fits && b.shape().rank() == 2) return linear(a, transpose(b, 0, 1), Variable());
  fits = fits && b.shape().rank() == rank;
  for (int d = 0; fits && d < rank - 2; ++d) fits = a.shape()[d] == b.shape()[d];
  require<ShapeError>(fits, kOp, ": got shapes ", a.shape(), " and ", b.shape(),
                      ", expected (..., M, K) and (..., K, P) or (K, P)");
  const Tensor y = result_of(a.value().stamp().known() ? a : b, a.shape().with(-1, b.shape()[-1]));
  backend(y).matmul(a.value(), false, b.value(), false, y);
  const auto gradient = [&] { return MatmulGradient{{a, "left argument"}, {b, "right argument"}}; };
  return record(y, {&a, &b}, gradient, 0, mixes_rows(a.value(), b.value(), rank - 2));
}

const Edge* log_softmax_argument(const Variable& y) {
  const auto* const node = dynamic_cast<const OpNode<LogSoftmaxGradient>*>(y.edge().node.get());
  return node ? node->edges().data() : nullptr;
}

Variable linear_log_softmax(const Variable& x, const Variable& w, const Variable& b) {
  if (checks_finite() || device_to_share("linear_log_softmax", {&x, &w, &b})) return log_softmax(linear(x, w, b));
  const Tensor y = linear_output("linear_log_softmax", x, w, b);
  backend(y).linear_log_softmax_forward(x.value(), w.value(), value_or_none(b), y);
  return record_log_softmax(y, record_linear(y, x, w, b));
}

}  // namespace duet::ops
