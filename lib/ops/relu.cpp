#include "lib/ops/relu.h"

#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct ReluNode final : Node {
  const char* name() const override { return "relu"; }
  void backward(const Gradients& g) override {
    backend(y).relu_backward(y, g.outputs[0], g.place(0, y.shape(), y.device(), y.layout()));
  }
  void release() override { y = Tensor(); }
  Tensor y;
};

}  // namespace

Variable relu(const Variable& x) {
  require_floats("relu", x);
  Tensor y = empty(x.shape(), DType::f32, x.device(), x.value().layout());
  y.set_stamp(x.value().stamp());
  backend(y).relu_forward(x.value(), y);
  return record<ReluNode>(y, {&x}, [&](ReluNode& node) { node.y = y; });
}

}  // namespace duet::ops
