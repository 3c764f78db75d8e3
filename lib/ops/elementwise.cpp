// relu, changes of layout, dropout.
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "lib/ops/ops.h"
#include "lib/ops/record.h"
#include "lib/random.h"

namespace duet::ops {
namespace {

struct ReluGradient {
  static constexpr const char* kName = "relu";
  void backward(const Gradients& g) const {
    backend(y).relu_backward(y, g.outputs[0], g.place(0, y.shape(), y.device(), y.layout()));
  }
  auto saved() const { return std::tie(y); }
  SavedTensor y;
};

struct LayoutGradient {
  static constexpr const char* kName = "to_layout";
  static constexpr bool kLinear = true;
  void backward(const Gradients& g) const { g.inputs[0] = in_layout(g.outputs[0], layout); }
  Layout layout = Layout::plain;
};

struct DropoutGradient {
  static constexpr const char* kName = "dropout";
  void backward(const Gradients& g) const {
    backend(mask).dropout_apply(g.outputs[0], mask, scale, g.place(0, mask.shape(), mask.device()));
  }
  auto saved() const { return std::tie(mask); }
  SavedTensor mask;
  float scale = 1;
};

/// Behind the first dimension, a part of a batch has its part of the mask that all samples have.
void draw_mask(const Tensor& mask, const DropoutKey& key) {
  const Rows& stamp = mask.stamp();
  if (stamp.outer == 0 || stamp.samples == stamp.global || mask.count() == 0)
    return backend(mask).dropout_mask(mask, key);
  const int d = stamp.dimension(mask.shape());
  require<UsageError>(d > 0, "dropout: the samples of the batch lie in no dimension of its input ", mask.shape(),
                      ", expected one: the mask would depend on the number of devices");
  const Shape shape = mask.shape().with(d, mask.size(d) / stamp.samples * stamp.global);
  const Tensor whole = empty(shape, DType::u8, mask.device());
  backend(whole).dropout_mask(whole, key);
  const auto each = static_cast<std::size_t>(mask.count() / (stamp.outer * stamp.samples));
  const auto part = each * static_cast<std::size_t>(stamp.samples), all = each * static_cast<std::size_t>(stamp.global);
  backend(mask).copy_2d(mask.raw(), part,
                        static_cast<const std::byte*>(whole.raw()) + each * static_cast<std::size_t>(stamp.first), all,
                        part, static_cast<std::size_t>(stamp.outer), mask.device());
}

Variable masked(const Variable& x, const Tensor& mask, float scale) {
  const Tensor y = result_of(x, x.shape());
  backend(y).dropout_apply(x.value(), mask, scale, y);
  return record(y, {&x}, [&] { return DropoutGradient{{mask, "mask"}, scale}; });
}

}  // namespace

Variable relu(const Variable& x) {
  require_floats("relu", x);
  const Tensor y = result_of(x, x.shape(), x.value().layout());
  backend(y).relu_forward(x.value(), y);
  return record(y, {&x}, [&] { return ReluGradient{{y, "result"}}; });
}

Variable to_layout(const Variable& x, Layout layout) {
  if (x.value().layout() == layout) return x;
  return record(in_layout(x.value(), layout), {&x}, [&] { return LayoutGradient{x.value().layout()}; });
}

Variable to_plain(const Variable& x) { return to_layout(x, Layout::plain); }

void require_probability(const char* op, double p) {
  require<UsageError>(p >= 0 && p < 1, op, ": probability ", p, ", expected 0 <= p < 1");
}

Variable dropout(const Variable& input, const DropoutKey& key) {
  require_floats("dropout", input);
  require_probability("dropout", key.p);
  if (key.p == 0) return input;
  const Variable x = to_plain(input);
  Tensor mask = empty(x.shape(), DType::u8, x.device());
  mask.set_stamp(x.value().stamp());
  draw_mask(mask, key);
  return masked(x, mask, key.scale());
}

Variable dropout(const Variable& input, float p, Mt19937& generator) {
  require_floats("dropout", input);
  require_probability("dropout", p);
  const Variable x = to_plain(input);
  const Tensor mask = empty(x.shape(), DType::u8);
  generator.bernoulli(mask.span<std::uint8_t>(), 1.0 - static_cast<double>(p));
  return masked(x, mask.to(x.device()), static_cast<float>(1.0 / (1.0 - static_cast<double>(p))));
}

}  // namespace duet::ops
