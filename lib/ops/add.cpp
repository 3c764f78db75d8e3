#include "lib/ops/add.h"

#include "lib/ops/record.h"
#include "lib/ops/to_plain.h"

namespace duet::ops {
namespace {

struct AddNode final : Node {
  const char* name() const override { return "add"; }
  void backward(const Gradients& g) override { g.inputs[0] = g.inputs[1] = g.outputs[0]; }
};

}  // namespace

Variable add(const Variable& a, const Variable& right) {
  require_floats("add", a);
  require_floats("add", right);
  require_one_device("add", {&a, &right});
  require<ShapeError>(a.shape() == right.shape(), "add: shapes ", a.shape(), " and ", right.shape(), " differ");
  const Variable b = to_layout(right, a.value().layout());
  Tensor y = empty(a.shape(), DType::f32, a.device(), a.value().layout());
  y.set_stamp(a.value().stamp());
  backend(y).add(a.value(), b.value(), y);
  return record<AddNode>(y, {&a, &b}, [](AddNode&) {});
}

}  // namespace duet::ops
