// Linear layers, alone, with relu and dropout, and with log_softmax; log_softmax and softmax.
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

struct LogSoftmaxGradient {
  static constexpr const char* kName = "log_softmax";
  void backward(const Gradients& g) const {
    backend(y).log_softmax_backward(y, g.outputs[0], g.place(0, y.shape(), y.device()));
  }
  auto saved() const { return std::tie(y); }
  SavedTensor y;
};

struct SoftmaxGradient {
  static constexpr const char* kName = "softmax";
  void backward(const Gradients& g) const {
    backend(y).softmax_backward(y, g.outputs[0], g.place(0, y.shape(), y.device()));
  }
  auto saved() const { return std::tie(y); }
  SavedTensor y;
};

/// Checks the arguments of a linear layer; gives room for its output.
Tensor linear_output(const char* op, const Variable& x, const Variable& w, const Variable& b) {
  require_one_device(op, {&x, &w, &b});
  require_rank(op, x, 2, "(N, I)");
  require_rank(op, w, 2, "(O, I)");
  require<ShapeError>(x.shape()[1] == w.shape()[1], op, ": input ", x.shape(), " and weights ", w.shape(),
                      " disagree about the number of inputs");
  require<ShapeError>(!b.defined() || b.shape() == Shape{w.shape()[0]}, op, ": bias ", ShapeText{b}, ", expected [",
                      w.shape()[0], "]");
  return result_of(x, {x.shape()[0], w.shape()[0]});
}

/// Puts a linear layer on the tape. Its backward reads its arguments only, so the value may be anything.
Variable record_linear(const Tensor& value, const Variable& x, const Variable& w, const Variable& b) {
  return record(value, {&x, &w, &b}, [&] { return LinearGradient{{x, "input"}, {w, "weight"}}; });
}

/// Puts log_softmax with the result y on the tape. Of its argument no value is read.
Variable record_log_softmax(const Tensor& y, const Variable& x) {
  return record(y, {&x}, [&] { return LogSoftmaxGradient{{y, "result"}}; });
}

}  // namespace

Variable linear(const Variable& x, const Variable& w, const Variable& b) {
  const Tensor y = linear_output("linear", x, w, b);
  backend(y).linear_forward(x.value(), w.value(), value_or_none(b), y);
  return record_linear(y, x, w, b);
}

Variable linear_relu_dropout(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key) {
  if (checks_finite()) return dropout(relu(linear(x, w, b)), key);
  const Tensor y = linear_output(LinearReluDropoutGradient::kName, x, w, b);
  require_probability(LinearReluDropoutGradient::kName, key.p);
  backend(y).linear_relu_dropout_forward(x.value(), w.value(), value_or_none(b), y, key);
  return record(y, {&x, &w, &b}, [&] {
    return LinearReluDropoutGradient{{x, "input"}, {w, "weight"}, {y, "result"}, key};
  });
}

Variable log_softmax(const Variable& x) {
  require_rank("log_softmax", x, 2, "(N, C)");
  const Tensor y = result_of(x, x.shape());
  backend(y).log_softmax_forward(x.value(), y);
  return record_log_softmax(y, x);
}

Variable softmax(const Variable& x) {
  require_rank("softmax", x, 2, "(N, C)");
  const Tensor y = result_of(x, x.shape());
  backend(y).softmax_forward(x.value(), y);
  return record(y, {&x}, [&] { return SoftmaxGradient{{y, "result"}}; });
}

const Edge* log_softmax_argument(const Variable& y) {
  const auto* const node = dynamic_cast<const OpNode<LogSoftmaxGradient>*>(y.edge().node.get());
  return node ? node->edges().data() : nullptr;
}

Variable linear_log_softmax(const Variable& x, const Variable& w, const Variable& b) {
  if (checks_finite()) return log_softmax(linear(x, w, b));
  const Tensor y = linear_output("linear_log_softmax", x, w, b);
  backend(y).linear_log_softmax_forward(x.value(), w.value(), value_or_none(b), y);
  return record_log_softmax(y, record_linear(y, x, w, b));
}

}  // namespace duet::ops
