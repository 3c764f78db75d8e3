#include "lib/ops/linear.h"

#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct LinearNode final : Node {
  const char* name() const override { return "linear"; }
  void backward(const Gradients& g) override {
    Backend& device = backend(x);
    Tensor dy = g.outputs[0];
    dy.set_stamp(x.stamp());
    // Weights first: they are what data-parallel training waits to send.
    if (g.wanted(1) || g.wanted(2)) {
      const Tensor& dw = g.place(1, w.shape(), w.device());
      device.linear_backward_weights(x, dy, dw, g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor());
    }
    if (g.wanted(0)) device.linear_backward_data(dy, w, g.place(0, x.shape(), x.device()));
  }
  void release() override { x = w = Tensor(); }
  Tensor x, w;
};

}  // namespace

void require_linear(const char* op, const Variable& x, const Variable& w, const Variable& b) {
  require_one_device(op, {&x, &w, &b});
  require_rank(op, x, 2, "(N, I)");
  require_rank(op, w, 2, "(O, I)");
  require<ShapeError>(x.shape()[1] == w.shape()[1], op, ": input ", x.shape(), " and weights ", w.shape(),
                      " disagree about the number of inputs");
  require<ShapeError>(!b.defined() || b.shape() == Shape{w.shape()[0]}, op, ": bias ", ShapeText{b}, ", expected [",
                      w.shape()[0], "]");
}

Tensor linear_output(const Variable& x, const Variable& w) {
  return empty({x.shape()[0], w.shape()[0]}, DType::f32, x.device()).set_stamp(x.value().stamp());
}

Variable record_linear(const Tensor& value, const Variable& x, const Variable& w, const Variable& b) {
  return record<LinearNode>(value, {&x, &w, &b}, [&](LinearNode& node) {
    node.x = x.value();
    node.w = w.value();
  });
}

Variable linear(const Variable& x, const Variable& w, const Variable& b) {
  require_linear("linear", x, w, b);
  const Tensor y = linear_output(x, w);
  backend(y).linear_forward(x.value(), w.value(), b.defined() ? b.value() : Tensor(), y);
  return record_linear(y, x, w, b);
}

}  // namespace duet::ops
