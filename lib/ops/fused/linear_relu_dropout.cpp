#include "lib/ops/fused/linear_relu_dropout.h"

#include "lib/ops/dropout.h"
#include "lib/ops/linear.h"
#include "lib/ops/record.h"
#include "lib/ops/relu.h"

namespace duet::ops {
namespace {

struct LinearReluDropoutNode final : Node {
  const char* name() const override { return "linear_relu_dropout"; }
  void backward(const Gradients& g) override {
    const bool weights = g.wanted(1) || g.wanted(2);
    const Tensor dx = g.wanted(0) ? g.place(0, x.shape(), x.device()) : Tensor();
    const Tensor dw = weights ? g.place(1, w.shape(), w.device()) : Tensor();
    const Tensor db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor();
    backend(x).linear_relu_dropout_backward(g.outputs[0], y, x, w, dx, dw, db, dropout);
  }
  void release() override { x = w = y = Tensor(); }
  Tensor x, w, y;
  DropoutKey dropout;
};

}  // namespace

Variable linear_relu_dropout(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key) {
  if (checks_finite()) return dropout(relu(linear(x, w, b)), key);
  const char* const kName = "linear_relu_dropout";
  require_linear(kName, x, w, b);
  require_probability(kName, key.p);
  const Tensor y = linear_output(x, w);
  backend(y).linear_relu_dropout_forward(x.value(), w.value(), b.defined() ? b.value() : Tensor(), y, key);
  return record<LinearReluDropoutNode>(y, {&x, &w, &b}, [&](LinearReluDropoutNode& node) {
    node.x = x.value();
    node.w = w.value();
    node.y = y;
    node.dropout = key;
  });
}

}  // namespace duet::ops
