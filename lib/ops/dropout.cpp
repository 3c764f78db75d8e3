#include "lib/ops/dropout.h"

#include <cstdint>

#include "lib/ops/record.h"
#include "lib/ops/to_plain.h"
#include "lib/random.h"

namespace duet::ops {
namespace {

struct DropoutNode final : Node {
  const char* name() const override { return "dropout"; }
  void backward(const Gradients& g) override {
    backend(mask).dropout_apply(g.outputs[0], mask, scale, g.place(0, mask.shape(), mask.device()));
  }
  void release() override { mask = Tensor(); }
  Tensor mask;
  float scale = 1;
};

Variable masked(const Variable& x, const Tensor& mask, float scale) {
  Tensor y = empty(x.shape(), DType::f32, x.device());
  y.set_stamp(x.value().stamp());
  backend(y).dropout_apply(x.value(), mask, scale, y);
  return record<DropoutNode>(y, {&x}, [&](DropoutNode& node) {
    node.mask = mask;
    node.scale = scale;
  });
}

void require_input(const Variable& x, float p) {
  require_floats("dropout", x);
  require_probability("dropout", p);
}

}  // namespace

void require_probability(const char* op, double p) {
  require<UsageError>(p >= 0 && p < 1, op, ": probability ", p, ", expected 0 <= p < 1");
}

Variable dropout(const Variable& input, const DropoutKey& key) {
  require_input(input, key.p);
  if (key.p == 0) return input;
  const Variable x = to_plain(input);
  Tensor mask = empty(x.shape(), DType::u8, x.device());
  mask.set_stamp(x.value().stamp());
  backend(mask).dropout_mask(mask, key);
  return masked(x, mask, key.scale());
}

Variable dropout(const Variable& input, float p, Mt19937& generator) {
  require_input(input, p);
  const Variable x = to_plain(input);
  const Tensor mask = empty(x.shape(), DType::u8);
  generator.bernoulli(mask.span<std::uint8_t>(), 1.0 - static_cast<double>(p));
  return masked(x, mask.to(x.device()), static_cast<float>(1.0 / (1.0 - static_cast<double>(p))));
}

}  // namespace duet::ops
