#include "lib/ops/flatten.h"

#include "lib/ops/record.h"
#include "lib/ops/to_plain.h"

namespace duet::ops {
namespace {

struct FlattenNode final : Node {
  const char* name() const override { return "flatten"; }
  void backward(const Gradients& g) override { g.inputs[0] = g.outputs[0].reshape(shape); }
  Shape shape;
};

}  // namespace

Variable flatten(const Variable& input) {
  require_floats("flatten", input);
  require<ShapeError>(input.shape().rank() >= 1, "flatten: got a scalar, expected (N, ...)");
  const Variable x = to_plain(input);
  return record<FlattenNode>(x.value().reshape({x.shape()[0], x.shape().count_from(1)}), {&x},
                             [&](FlattenNode& node) { node.shape = x.shape(); });
}

}  // namespace duet::ops
