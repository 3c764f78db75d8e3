#include "lib/ops/max_pool2d.h"

#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct MaxPool2dNode final : Node {
  const char* name() const override { return "max_pool2d"; }
  void backward(const Gradients& g) override {
    Tensor dy = g.outputs[0];
    dy.set_stamp(index.stamp());
    backend(dy).max_pool2d_backward(dy, index, g.place(0, shape, dy.device(), index.layout()), window);
  }
  void release() override { index = Tensor(); }
  Tensor index;
  Shape shape;
  Window2d window;
};

}  // namespace

Variable max_pool2d(const Variable& x, const Window2d& window) {
  require_rank("max_pool2d", x, 4, "(N, C, H, W)");
  require<ShapeError>(window.kernel_h > 0 && window.kernel_w > 0 && window.stride_h > 0 && window.stride_w > 0 &&
                          window.kernel_h * window.kernel_w < 255 && 2 * window.pad_h <= window.kernel_h &&
                          2 * window.pad_w <= window.kernel_w && window.pad_h >= 0 && window.pad_w >= 0 &&
                          window.fits(x.shape()[2], x.shape()[3]),
                      "max_pool2d: a window of ", window.kernel_h, "x", window.kernel_w, ", padding ", window.pad_h,
                      "x", window.pad_w, " does not suit input ", x.shape());
  const Layout layout = x.value().layout();
  const Shape shape = {x.shape()[0], x.shape()[1], window.out_h(x.shape()[2]), window.out_w(x.shape()[3])};
  Tensor y = empty(shape, DType::f32, x.device(), layout);
  y.set_stamp(x.value().stamp());
  Tensor index = empty(shape, DType::u8, x.device(), layout);
  index.set_stamp(x.value().stamp());
  backend(y).max_pool2d_forward(x.value(), y, index, window);
  return record<MaxPool2dNode>(y, {&x}, [&](MaxPool2dNode& node) {
    node.index = index;
    node.shape = x.shape();
    node.window = window;
  });
}

}  // namespace duet::ops
