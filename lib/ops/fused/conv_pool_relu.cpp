#include "lib/ops/fused/conv_pool_relu.h"

#include <cstdint>

#include "lib/ops/conv2d.h"
#include "lib/ops/dropout.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct ConvPoolReluNode final : Node {
  const char* name() const override { return "conv_pool_relu"; }
  void backward(const Gradients& g) override {
    const Tensor dx = g.wanted(0) ? g.place(0, x.shape(), x.device(), x.layout()) : Tensor();
    const Tensor& dw = g.place(1, w.shape(), w.device());
    const Tensor db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor();
    backend(x).conv_pool_relu_backward(g.outputs[0], index, x, w, dx, dw, db, op);
  }
  void release() override { x = w = index = Tensor(); }
  Tensor x, w, index;
  ConvPoolRelu op;
};

}  // namespace

bool pool_tiles(const Window2d& pool) {
  return pool.kernel_h == pool.stride_h && pool.kernel_w == pool.stride_w && pool.pad_h == 0 && pool.pad_w == 0 &&
         pool.kernel_h > 0 && pool.kernel_w > 0 && pool.kernel_h * pool.kernel_w < 255;
}

Variable conv_pool_relu(const Variable& input, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output) {
  const char* const kName = "conv_pool_relu";
  require_conv2d(kName, input, w, b, op.conv);
  require<ShapeError>(b.defined(), kName, ": needs a bias");
  require<ShapeError>(pool_tiles(op.pool), kName, ": pool windows must tile, got kernel ", op.pool.kernel_h, "x",
                      op.pool.kernel_w, " and stride ", op.pool.stride_h, "x", op.pool.stride_w);
  const std::int64_t height = op.conv.out_h(input.shape()[2]), width = op.conv.out_w(input.shape()[3]);
  require<ShapeError>(op.pool.fits(height, width), kName, ": a pool window of ", op.pool.kernel_h, "x",
                      op.pool.kernel_w, " does not fit into the convolution's ", height, "x", width, " pixels");
  require_probability(kName, op.dropout.p);
  const Layout layout = backend(w.value()).conv2d_layout(input.shape(), w.shape());
  const Variable x = conv2d_input(input, layout);
  const Shape shape = {x.shape()[0], w.shape()[0], op.pool.out_h(height), op.pool.out_w(width)};
  const Layout out = plain_output ? Layout::plain : layout;
  Tensor y = empty(shape, DType::f32, x.device(), out);
  y.set_stamp(x.value().stamp());
  const Tensor index = empty(shape, DType::u8, x.device(), out);
  backend(y).conv_pool_relu_forward(x.value(), w.value(), b.value(), y, index, op);
  return record<ConvPoolReluNode>(y, {&x, &w, &b}, [&](ConvPoolReluNode& node) {
    node.x = x.value();
    node.w = w.value();
    node.index = index;
    node.op = op;
  });
}

}  // namespace duet::ops
