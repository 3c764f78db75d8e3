#include "lib/ops/to_plain.h"

#include "lib/ops/record.h"

namespace duet::ops {
namespace {

Tensor converted(const Tensor& x, Layout layout) {
  if (x.layout() == layout) return x;
  if (x.layout() != Layout::plain && layout != Layout::plain) return converted(converted(x, Layout::plain), layout);
  Tensor y = empty(x.shape(), DType::f32, x.device(), layout);
  y.set_stamp(x.stamp());
  if (layout == Layout::plain) {
    backend(x).to_plain(x, y);
  } else {
    backend(x).from_plain(x, y);
  }
  return y;
}

struct ToLayoutNode final : Node {
  const char* name() const override { return "to_layout"; }
  void backward(const Gradients& g) override { g.inputs[0] = converted(g.outputs[0], layout); }
  Layout layout = Layout::plain;
};

}  // namespace

Variable to_layout(const Variable& x, Layout layout) {
  if (x.value().layout() == layout) return x;
  return record<ToLayoutNode>(converted(x.value(), layout), {&x},
                              [&](ToLayoutNode& node) { node.layout = x.value().layout(); });
}

Variable to_plain(const Variable& x) { return to_layout(x, Layout::plain); }

}  // namespace duet::ops
