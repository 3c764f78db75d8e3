#include "lib/ops/losses.h"

#include <cstdint>

#include "lib/ops/log_softmax.h"
#include "lib/ops/record.h"
#include "lib/ops/to_plain.h"

namespace duet::ops {
namespace {

/// 1 / (rows * columns) for the value, and with the global rows for the gradient.
struct Factors {
  Factors(const Tensor& x, const Tensor& other, std::int64_t columns) {
    const Rows stamp = x.stamp().stamped() ? x.stamp() : other.stamp();
    const std::int64_t global = stamp.stamped() ? stamp.global : x.size(0);
    value = 1.0f / static_cast<float>(x.size(0) * columns);
    gradient = 1.0f / static_cast<float>(global * columns);
    normaliser = normaliser_of(stamp, x.size(0));
  }
  float value, gradient;
  Normaliser normaliser;
};

struct NllLossNode final : Node {
  const char* name() const override { return "nll_loss"; }
  void backward(const Gradients& g) override {
    backend(labels).nll_loss_backward(g.outputs[0], labels, factor, g.place(0, shape, labels.device()));
  }
  void release() override { labels = Tensor(); }
  Tensor labels;
  Shape shape;
  float factor = 0;
};

/// nll_loss behind log_softmax: the gradient goes past it, straight to its argument. That of a loss which is the end of
/// the tape was made with its value.
struct LogSoftmaxNllNode final : Node {
  const char* name() const override { return "nll_loss"; }
  bool starts_from_one() const override { return true; }
  void backward(const Gradients& g) override {
    if (!g.outputs[0].defined()) {
      g.inputs[0] = from_one;
      return;
    }
    backend(y).log_softmax_nll_backward(g.outputs[0], y, labels, factor, g.place(0, y.shape(), y.device()));
  }
  void release() override { y = labels = from_one = Tensor(); }
  Tensor y, labels, from_one;
  float factor = 0;
};

struct MseLossNode final : Node {
  const char* name() const override { return "mse_loss"; }
  void backward(const Gradients& g) override {
    backend(x).mse_loss_backward(g.outputs[0], x, target, factor, g.place(0, x.shape(), x.device()));
  }
  void release() override { x = target = Tensor(); }
  Tensor x, target;
  float factor = 0;
};

}  // namespace

Variable nll_loss(const Variable& x, const Tensor& labels) {
  require_rank("nll_loss", x, 2, "(N, C)");
  require<ShapeError>(labels.shape() == Shape{x.shape()[0]} && labels.dtype() == DType::i64, "nll_loss: labels ",
                      labels.shape(), " ", name(labels.dtype()), ", expected [", x.shape()[0], "] i64");
  require<DeviceError>(labels.device() == x.device(), "nll_loss: input on ", x.device(), ", labels on ",
                       labels.device());
  const Factors factors(x.value(), labels, 1);
  const Tensor loss = empty({}, DType::f32, x.device());
  if (const Edge* const logits = recorded({&x}) ? log_softmax_argument(x) : nullptr) {
    const Tensor dx = empty(x.shape(), DType::f32, x.device());
    backend(loss).log_softmax_nll_forward(x.value(), labels, factors.value, loss, factors.gradient, dx);
    const Variable receiver(x.value(), logits->node, logits->output);
    return record<LogSoftmaxNllNode>(loss, {&receiver}, [&](LogSoftmaxNllNode& node) {
      node.y = x.value();
      node.labels = labels;
      node.from_one = dx;
      node.factor = factors.gradient;
      node.set_normalisers(factors.normaliser);
    });
  }
  backend(loss).nll_loss_forward(x.value(), labels, factors.value, loss);
  return record<NllLossNode>(loss, {&x}, [&](NllLossNode& node) {
    node.labels = labels;
    node.shape = x.shape();
    node.factor = factors.gradient;
    node.set_normalisers(factors.normaliser);
  });
}

Variable mse_loss(const Variable& input, const Tensor& target) {
  require_floats("mse_loss", input);
  require_floats("mse_loss", Variable(target));
  const Variable x = to_plain(input);
  require<ShapeError>(target.layout() == Layout::plain, "mse_loss: target in layout ", name(target.layout()),
                      ", expected plain");
  require<ShapeError>(x.shape() == target.shape() && x.shape().rank() >= 1, "mse_loss: input ", x.shape(),
                      " and target ", target.shape(), " differ");
  require<DeviceError>(target.device() == x.device(), "mse_loss: input on ", x.device(), ", target on ",
                       target.device());
  const Factors factors(x.value(), target, x.shape().count_from(1));
  const Tensor loss = empty({}, DType::f32, x.device());
  backend(loss).mse_loss_forward(x.value(), target, factors.value, loss);
  return record<MseLossNode>(loss, {&x}, [&](MseLossNode& node) {
    node.x = x.value();
    node.target = target;
    node.factor = factors.gradient;
    node.set_normalisers(factors.normaliser);
  });
}

}  // namespace duet::ops
