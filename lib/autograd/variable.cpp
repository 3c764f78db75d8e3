#include "lib/autograd/variable.h"

#include <utility>

#include "lib/autograd/node.h"
#include "lib/backend/backend.h"

namespace duet {
namespace {

/// Keeps the gradient of a leaf variable.
class KeepGradient final : public Leaf {
 public:
  const char* name() const override { return "KeepGradient"; }
  void backward(const Gradients& gradients) override {
    const Tensor& arrived = gradients.outputs[0];
    if (!arrived.defined()) return;
    if (!gradient.defined()) {
      gradient = arrived;
    } else {
      const Tensor sum = empty(arrived.shape(), DType::f32, arrived.device(), arrived.layout());
      backend(arrived).add(gradient, arrived, sum);
      gradient = sum;
    }
  }
  Tensor gradient;
};

}  // namespace

Variable::Variable(Tensor value, bool requires_grad) : state_(make_pooled<State>()) {
  state_->value = std::move(value);
  if (requires_grad) state_->edge = {make_pooled<KeepGradient>(), 0};
}

Variable::Variable(Tensor value, std::shared_ptr<Node> node, int output) : state_(make_pooled<State>()) {
  state_->value = std::move(value);
  state_->edge = {std::move(node), output};
}

Variable Variable::constant(Tensor value, bool of_mean) {
  Variable made(std::move(value));
  made.state_->of_mean = of_mean;
  return made;
}

Variable Variable::detach() const { return constant(value(), of_batch_mean()); }

bool Variable::of_batch_mean() const {
  return requires_grad() ? (state_->edge.kinds() & kOfMeans) != 0 : state_ && state_->of_mean;
}

Tensor Variable::grad() const {
  const auto* const leaf = state_ ? dynamic_cast<const KeepGradient*>(state_->edge.node.get()) : nullptr;
  return leaf ? leaf->gradient : Tensor();
}

void Variable::zero_grad() {
  if (auto* const leaf = dynamic_cast<KeepGradient*>(state_->edge.node.get())) leaf->gradient = Tensor();
}

void Variable::backward() const {
  require<ShapeError>(value().count() == 1, "backward() without a gradient needs a scalar, got shape ", shape());
  if (requires_grad() && state_->edge.node->starts_from_one()) {
    const BackwardRoot root = {state_->edge, Tensor()};
    return run_backward({&root, 1});
  }
  const Tensor one = empty(shape(), DType::f32, device());
  backend(one).fill(one, 1.0f);
  backward(one);
}

void Variable::backward(const Tensor& gradient) const {
  require<ShapeError>(gradient.defined(), "backward() got no gradient for a value of shape ", shape());
  require<ShapeError>(gradient.shape() == shape(), "backward() got a gradient of shape ", gradient.shape(),
                      " for a value of shape ", shape());
  require<ShapeError>(gradient.dtype() == DType::f32, "backward() got a gradient of ", name(gradient.dtype()),
                      ", expected f32");
  const Layout layout = value().layout();  // gradients from the user are in the plain one, whatever the value's own is
  require<ShapeError>(gradient.layout() == layout || gradient.layout() == Layout::plain || layout == Layout::plain,
                      "backward() got a gradient in ", name(gradient.layout()), " for a value in ", name(layout));
  const bool shared = gradient.device().kind == DeviceKind::cpu && device().kind == DeviceKind::cpu;
  require<DeviceError>(shared || gradient.device() == device(), "backward() got a gradient on ", gradient.device(),
                       " for a value on ", device(), ", expected one device: make it by zeros_like(x, shape)");
  const BackwardRoot root = {state_->edge, in_layout(shared ? gradient.alias(device()) : gradient, layout)};
  run_backward({&root, 1});
}

float Variable::item() const {
  require<ShapeError>(value().count() == 1, "item() needs one element, got shape ", shape());
  return *value().to(Device{}).data<float>();
}

Tensor zeros_like(const Variable& x, const Shape& shape, DType dtype) {
  Tensor zero = zeros(shape, dtype, x.device());
  if (x.value().stamp().stamped() && shape.rank() > 0 && shape[0] == x.size(0)) zero.set_stamp(x.value().stamp());
  return zero;
}

Tensor full_like(const Variable& x, const Shape& shape, float value) {
  Tensor full = zeros_like(x, shape);
  backend(full).fill(full, value);
  return full;
}

}  // namespace duet
