#include "lib/ops/log_softmax.h"

#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct LogSoftmaxNode final : Node {
  const char* name() const override { return "log_softmax"; }
  void backward(const Gradients& g) override {
    backend(y).log_softmax_backward(y, g.outputs[0], g.place(0, y.shape(), y.device()));
  }
  void release() override { y = Tensor(); }
  Tensor y;
};

}  // namespace

Variable record_log_softmax(const Tensor& y, const Variable& x) {
  return record<LogSoftmaxNode>(y, {&x}, [&](LogSoftmaxNode& node) { node.y = y; });
}

Variable log_softmax(const Variable& x) {
  require_rank("log_softmax", x, 2, "(N, C)");
  Tensor y = empty(x.shape(), DType::f32, x.device());
  y.set_stamp(x.value().stamp());
  backend(y).log_softmax_forward(x.value(), y);
  return record_log_softmax(y, x);
}

const Edge* log_softmax_argument(const Variable& y) {
  const auto* const node = dynamic_cast<const LogSoftmaxNode*>(y.edge().node.get());
  return node ? node->edges().data() : nullptr;
}

}  // namespace duet::ops
