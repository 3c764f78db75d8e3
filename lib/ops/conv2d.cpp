#include "lib/ops/conv2d.h"

#include <cstdint>

#include "lib/ops/record.h"
#include "lib/ops/to_plain.h"

namespace duet::ops {
namespace {

struct Conv2dNode final : Node {
  const char* name() const override { return "conv2d"; }
  void backward(const Gradients& g) override {
    Backend& device = backend(x);
    Tensor dy = g.outputs[0];
    dy.set_stamp(x.stamp());
    if (g.wanted(0)) device.conv2d_backward_data(dy, w, g.place(0, x.shape(), x.device(), x.layout()), window);
    if (!g.wanted(1) && !g.wanted(2)) return;
    const Tensor& dw = g.place(1, w.shape(), w.device());
    const Tensor db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor();
    device.conv2d_backward_weights(x, dy, dw, db, window);
  }
  void release() override { x = w = Tensor(); }
  Tensor x, w;
  Window2d window;
};

}  // namespace

void require_conv2d(const char* op, const Variable& x, const Variable& w, const Variable& b, const Window2d& window) {
  require_one_device(op, {&x, &w, &b});
  require_rank(op, x, 4, "(N, C, H, W)");
  require_rank(op, w, 4, "(K, C, R, S)");
  require<ShapeError>(x.shape()[1] == w.shape()[1], op, ": input ", x.shape(), " has ", x.shape()[1],
                      " channels, weights ", w.shape(), " expect ", w.shape()[1]);
  require<ShapeError>(window.kernel_h == w.shape()[2] && window.kernel_w == w.shape()[3], op, ": kernel size ",
                      window.kernel_h, "x", window.kernel_w, " for weights ", w.shape());
  require<ShapeError>(!b.defined() || b.shape() == Shape{w.shape()[0]}, op, ": bias ", ShapeText{b}, ", expected [",
                      w.shape()[0], "]");
  require<ShapeError>(window.stride_h > 0 && window.stride_w > 0 && window.pad_h >= 0 && window.pad_w >= 0 &&
                          window.fits(x.shape()[2], x.shape()[3]),
                      op, ": a kernel of ", window.kernel_h, "x", window.kernel_w, " does not fit into input ",
                      x.shape());
}

Variable conv2d_input(const Variable& x, Layout output) {
  // Images of 1 or 3 channels are read as they are; see Backend::conv2d_layout.
  const std::int64_t channels = x.shape()[1];
  const bool plain = output == Layout::plain || channels == 1 || channels == 3;
  return to_layout(x, plain ? Layout::plain : output);
}

Variable conv2d(const Variable& input, const Variable& w, const Variable& b, const Window2d& window) {
  require_conv2d("conv2d", input, w, b, window);
  const Layout layout = backend(w.value()).conv2d_layout(input.shape(), w.shape());
  const Variable x = conv2d_input(input, layout);
  Tensor y = empty({x.shape()[0], w.shape()[0], window.out_h(x.shape()[2]), window.out_w(x.shape()[3])}, DType::f32,
                   x.device(), layout);
  y.set_stamp(x.value().stamp());
  backend(y).conv2d_forward(x.value(), w.value(), b.defined() ? b.value() : Tensor(), y, window);
  return record<Conv2dNode>(y, {&x, &w, &b}, [&](Conv2dNode& node) {
    node.x = x.value();
    node.w = w.value();
    node.window = window;
  });
}

}  // namespace duet::ops
