// The fused operator dropout(relu(max_pool2d(conv2d(x)))): cuDNN's convolution, and one own kernel for all the rest; or
// own kernels only, for images of one channel.
#include <cstdint>
#include <limits>
#include <optional>

#include "lib/backend/cuda/conv_support.h"
#include "lib/backend/cuda/sizes.h"

namespace duet::cuda {
namespace {

/// The convolution's output.
Shape image_shape(const Tensor& x, const Tensor& w, const ConvPoolRelu& op) {
  return {x.size(0), w.size(0), op.conv.out_h(x.size(2)), op.conv.out_w(x.size(3))};
}

kernels::TiledPool tiles(const Shape& image, const ConvPoolRelu& op) {
  // The kernels count the elements of a row in ints, in whole chunks of dropout's.
  to_int(image.count_from(1) + arithmetic::kDropoutLanes * arithmetic::kDropoutNumbers, "a row of the convolution");
  return {.rows = image[0],
          .channels = static_cast<int>(image[1]),
          .height = static_cast<int>(image[2]),
          .width = static_cast<int>(image[3]),
          .out_height = static_cast<int>(op.pool.out_h(image[2])),
          .out_width = static_cast<int>(op.pool.out_w(image[3])),
          .kernel_h = static_cast<int>(op.pool.kernel_h),
          .kernel_w = static_cast<int>(op.pool.kernel_w)};
}

/// The operator's sizes, if own kernels compute it: their arithmetic is that of floats, whatever the precision.
std::optional<kernels::OneChannelConv> one_channel(const CudaDevice& device, const Tensor& x, const Tensor& w,
                                                   const Tensor& y, const ConvPoolRelu& op) {
  const Window2d conv = {3, 3, 1, 1, op.conv.pad_h, op.conv.pad_w}, pool = {2, 2, 2, 2, 0, 0};
  constexpr std::int64_t kMost = std::numeric_limits<int>::max(), kMostChannels = 4096;
  const bool suits = x.size(1) == 1 && op.conv == conv && op.pool == pool && op.dropout.p == 0;
  if (!suits || w.size(0) > kMostChannels || x.count() > kMost || y.count() > kMost) return {};
  return kernels::OneChannelConv{.rows = static_cast<int>(x.size(0)),
                                 .channels = static_cast<int>(w.size(0)),
                                 .height = static_cast<int>(x.size(2)),
                                 .width = static_cast<int>(x.size(3)),
                                 .pad_h = static_cast<int>(op.conv.pad_h),
                                 .pad_w = static_cast<int>(op.conv.pad_w),
                                 .out_height = static_cast<int>(y.size(2)),
                                 .out_width = static_cast<int>(y.size(3)),
                                 .rounds = device.precision() == Precision::bf16};
}

}  // namespace

void CudaBackend::conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                         const Tensor& index, const ConvPoolRelu& op) {
  same_device("conv_pool_relu_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}, {"index", index}});
  CudaDevice& device = on(x);
  if (y.count() == 0) return;
  if (const auto shape = one_channel(device, x, w, y, op))
    return kernels::conv_one_channel_forward(x.data<float>(), w.data<float>(), b.data<float>(), y.data<float>(),
                                             index.data<std::uint8_t>(), *shape, device.stream());
  const Tensor image = empty(image_shape(x, w, op), DType::f32, x.device());
  convolve(device, ConvPass::forward, x.shape(), w.shape(), op.conv, {device, x}, {device, w}, image);
  std::optional<kernels::StepDraw> draw;
  if (op.dropout.p > 0) draw = device.draw(op.dropout, x.stamp_or_self());
  kernels::bias_pool_relu_forward(image.data<float>(), b.data<float>(), y.data<float>(), index.data<std::uint8_t>(),
                                  tiles(image.shape(), op), draw ? &*draw : nullptr, op.dropout.scale(),
                                  device.stream());
}

void CudaBackend::conv_pool_relu_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                                          const Tensor& dx, const Tensor& dw, const Tensor& db,
                                          const ConvPoolRelu& op) {
  same_device("conv_pool_relu_backward",
              {{"dy", dy}, {"index", index}, {"x", x}, {"w", w}, {"dx", dx}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  const float scale = op.dropout.scale();
  const auto* const places = index.data<std::uint8_t>();
  if (const auto shape = one_channel(device, x, w, dy, op); shape && !dx.defined()) {
    const Tensor partials = empty({kernels::conv_one_channel_partials(*shape)}, DType::f32, x.device());
    return kernels::conv_one_channel_backward(dy.data<float>(), places, x.data<float>(), partials.data<float>(),
                                              dw.data<float>(), db.defined() ? db.data<float>() : nullptr, *shape,
                                              device.stream());
  }
  const auto bias = [&] {
    if (db.defined())
      kernels::channel_bias_gradient(dy.data<float>(), places, scale, db.data<float>(), dy.size(0),
                                     to_int(dy.size(1), "channels"), dy.size(2) * dy.size(3), device.stream());
  };
  if (x.size(0) == 0) {
    clear(device, dw);
    return bias();
  }
  const Tensor image = empty(image_shape(x, w, op), DType::f32, x.device());
  kernels::bias_pool_relu_backward(dy.data<float>(), places, scale, image.data<float>(), tiles(image.shape(), op),
                                   device.stream());
  const ConvOperand gradient(device, image);
  const auto weights = [&] {
    convolve(device, ConvPass::backward_weights, x.shape(), w.shape(), op.conv, {device, x}, gradient, dw);
  };
  const auto rest = [&] {
    if (dx.defined())
      convolve(device, ConvPass::backward_data, x.shape(), w.shape(), op.conv, gradient, {device, w}, dx);
    bias();
  };
  device.beside(weights, rest);
}

}  // namespace duet::cuda
