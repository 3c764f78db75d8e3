// Convolutions, alone and fused with max pooling, relu and dropout; batch norm.
#include <cstdint>
#include <tuple>

#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct Conv2dGradient {
  static constexpr const char* kName = "conv2d";
  void backward(const Gradients& g) const {
    Backend& device = backend(x);
    Tensor dy = g.outputs[0];
    dy.set_stamp(x.stamp());
    if (g.wanted(0)) device.conv2d_backward_data(dy, w, g.place(0, x.shape(), x.device(), x.layout()), window);
    if (!g.wanted(1) && !g.wanted(2)) return;
    const Tensor& dw = g.place(1, w.shape(), w.device());
    const Tensor db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor();
    device.conv2d_backward_weights(x, dy, dw, db, window);
  }
  auto saved() const { return std::tie(x, w); }
  SavedTensor x, w;
  Window2d window;
};

/// A convolution whose image is the result, and whose result is x.
struct ConvTranspose2dGradient {
  static constexpr const char* kName = "conv_transpose2d";
  void backward(const Gradients& g) const {
    Tensor dy = g.outputs[0];
    dy.set_stamp(x.stamp());
    if (g.wanted(0)) backend(x).conv2d_forward(dy, w, {}, g.place(0, x.shape(), x.device(), x.layout()), window);
    if (g.wanted(1)) backend(x).conv2d_backward_weights(dy, x, g.place(1, w.shape(), w.device()), {}, window);
  }
  auto saved() const { return std::tie(x, w); }
  SavedTensor x, w;
  Window2d window;
};

struct ConvPoolReluGradient {
  static constexpr const char* kName = "conv_pool_relu";
  void backward(const Gradients& g) const {
    const Tensor dx = g.wanted(0) ? g.place(0, x.shape(), x.device(), x.layout()) : Tensor();
    const Tensor& dw = g.place(1, w.shape(), w.device());
    const Tensor db = g.wanted(2) ? g.place(2, {w.size(0)}, w.device()) : Tensor();
    backend(x).conv_pool_relu_backward(g.outputs[0], index, x, w, dx, dw, db, op);
  }
  auto saved() const { return std::tie(x, w, index); }
  SavedTensor x, w, index;
  ConvPoolRelu op;
};

struct BatchNorm2dGradient {
  static constexpr const char* kName = "batch_norm2d";
  void backward(const Gradients& g) const {
    Tensor dx, dresidual;
    if (g.wanted(0)) dx = g.place(0, x.shape(), x.device(), x.layout());
    if (with_residual && options.relu) {
      dresidual = g.wanted(3) ? g.place(3, x.shape(), x.device(), x.layout())
                              : empty(x.shape(), DType::f32, x.device(), x.layout());
    } else if (with_residual) {
      g.inputs[3] = g.outputs[0];
    }
    backend(x).batch_norm2d_backward(x, y, g.outputs[0], weight, bias, mean, inverse_std, dx, dresidual,
                                     g.place(1, weight.shape(), x.device()), g.place(2, weight.shape(), x.device()),
                                     options);
  }
  auto saved() const { return std::tie(x, y, weight, bias, mean, inverse_std); }
  SavedTensor x, y, weight, bias, mean, inverse_std;  // y where relu follows
  bool with_residual = false;
  BatchNorm2dOptions options;
};

void require_conv2d(const char* op, const Variable& x, const Variable& w, const Variable& b, const Window2d& window,
                    std::int64_t groups = 1) {
  require_rank(op, x, 4, "(N, C, H, W)");
  require_rank(op, w, 4, "(K, C, R, S)");
  require<ShapeError>(groups > 0 && w.shape()[0] % groups == 0, op, ": ", w.shape()[0],
                      " output channels do not divide into ", groups, " groups");
  const std::int64_t in = x.shape()[1], of_group = w.shape()[1];
  require<ShapeError>(of_group > 0 && (groups > 1 || in == of_group), op, ": input ", x.shape(), " has ", in,
                      " channels, weights ", w.shape(), " expect ", of_group);
  require<ShapeError>(in == of_group * groups, op, ": input ", x.shape(), " has ", in, " channels, weights ", w.shape(),
                      " expect ", of_group, " for each of ", groups, " groups");
  require<ShapeError>(window.kernel_h == w.shape()[2] && window.kernel_w == w.shape()[3], op, ": kernel size ",
                      window.kernel_h, "x", window.kernel_w, " for weights ", w.shape());
  require<ShapeError>(!b.defined() || b.shape() == Shape{w.shape()[0]}, op, ": bias ", ShapeText{b}, ", expected [",
                      w.shape()[0], "]");
  require<ShapeError>(window.stride_h > 0 && window.stride_w > 0 && window.pad_h >= 0 && window.pad_w >= 0 &&
                          window.fits(x.shape()[2], x.shape()[3]),
                      op, ": a kernel of ", window.kernel_h, "x", window.kernel_w, " does not fit into input ",
                      x.shape());
}

/// The layout in which the backend's convolution reads images of so many channels when it writes `output`. Those of 1
/// or 3 are read as they are; see Backend::conv2d_layout.
Layout image_layout(std::int64_t channels, Layout output) {
  return channels == 1 || channels == 3 ? Layout::plain : output;
}

Variable conv2d_input(const Variable& x, Layout output) { return to_layout(x, image_layout(x.shape()[1], output)); }

}  // namespace

Variable conv2d(const Variable& input, const Variable& w, const Variable& b, const Window2d& window,
                std::int64_t groups) {
  if (const auto device = device_to_share("conv2d", {&input, &w, &b}))
    return conv2d(on(*device, input), on(*device, w), on(*device, b), window, groups);
  require_conv2d("conv2d", input, w, b, window, groups);
  const Layout layout = backend(w.value()).conv2d_layout(input.shape(), w.shape());
  const Variable x = conv2d_input(input, layout);
  const Shape shape = {x.shape()[0], w.shape()[0], window.out_h(x.shape()[2]), window.out_w(x.shape()[3])};
  const Tensor y = result_of(x, shape, layout);
  backend(y).conv2d_forward(x.value(), w.value(), value_or_none(b), y, window);
  return record(y, {&x, &w, &b}, [&] { return Conv2dGradient{{x, "input"}, {w, "weight"}, window}; });
}

Variable conv_transpose2d(const Variable& input, const Variable& w, const Variable& b, const Window2d& window,
                          std::int64_t output_padding, std::int64_t groups) {
  constexpr const char* kOp = ConvTranspose2dGradient::kName;
  if (const auto device = device_to_share(kOp, {&input, &w, &b}))
    return conv_transpose2d(on(*device, input), on(*device, w), on(*device, b), window, output_padding, groups);
  require_rank(kOp, input, 4, "(N, C, H, W)");
  require_rank(kOp, w, 4, "(C, K, R, S)");
  require<ShapeError>(input.size(1) == w.size(0) && groups > 0 && input.size(1) % groups == 0 && w.size(1) > 0, kOp,
                      ": input ", input.shape(), " and weights ", w.shape(), " in ", groups,
                      " groups, expected as many channels of the input as rows of the weights, in whole groups");
  require<ShapeError>(window.kernel_h == w.size(2) && window.kernel_w == w.size(3), kOp, ": kernel size ",
                      window.kernel_h, "x", window.kernel_w, " for weights ", w.shape());
  require<ShapeError>(0 <= output_padding && output_padding < window.stride_h && output_padding < window.stride_w, kOp,
                      ": output padding ", output_padding, " for strides ", window.stride_h, " and ", window.stride_w,
                      ", expected 0 or more and less than these");
  const std::int64_t channels = w.size(1) * groups;
  require<ShapeError>(!b.defined() || b.shape() == Shape{channels}, kOp, ": bias ", ShapeText{b}, ", expected [",
                      channels, "]");
  const auto grown = [&](std::int64_t size, std::int64_t stride, std::int64_t pad, std::int64_t kernel) {
    return (size - 1) * stride - 2 * pad + kernel + output_padding;
  };
  const std::int64_t height = grown(input.size(2), window.stride_h, window.pad_h, window.kernel_h),
                     width = grown(input.size(3), window.stride_w, window.pad_w, window.kernel_w);
  require<ShapeError>(height > 0 && width > 0 && window.pad_h >= 0 && window.pad_w >= 0, kOp, ": input ", input.shape(),
                      " gives ", height, "x", width, " pixels, expected 1x1 or more");
  const Shape shape = {input.size(0), channels, height, width};
  const Layout layout = backend(w.value()).conv2d_layout(shape, w.shape());
  const Variable x = to_layout(input, layout);
  const Tensor y = result_of(x, shape, image_layout(channels, layout));
  backend(y).conv2d_backward_data(x.value(), w.value(), y, window);
  const Variable product = record(y, {&x, &w}, [&] {
    return ConvTranspose2dGradient{{x, "input"}, {w, "weight"}, window};
  });
  return b.defined() ? product + reshape(b, {-1, 1, 1}) : product;
}

bool pool_tiles(const Window2d& pool) {
  return pool.kernel_h == pool.stride_h && pool.kernel_w == pool.stride_w && pool.pad_h == 0 && pool.pad_w == 0 &&
         pool.kernel_h > 0 && pool.kernel_w > 0 && pool.kernel_h * pool.kernel_w < 255;
}

Variable conv_pool_relu(const Variable& input, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output) {
  const char* const kName = ConvPoolReluGradient::kName;
  if (const auto device = device_to_share(kName, {&input, &w, &b}))
    return conv_pool_relu(on(*device, input), on(*device, w), on(*device, b), op, plain_output);
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
  const Tensor y = result_of(x, shape, out), index = empty(shape, DType::u8, x.device(), out);
  backend(y).conv_pool_relu_forward(x.value(), w.value(), b.value(), y, index, op);
  return record(y, {&x, &w, &b}, [&] {
    return ConvPoolReluGradient{{x, "input"}, {w, "weight"}, {index, "index of the maxima"}, op};
  });
}

Variable batch_norm2d(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                      const Tensor& running_var, const BatchNorm2dOptions& options, const Variable& summand) {
  if (const auto device = device_to_share("batch_norm2d", {&x, &weight, &bias, &summand}))
    return batch_norm2d(on(*device, x), on(*device, weight), on(*device, bias), running_mean, running_var, options,
                        on(*device, summand));
  require_rank("batch_norm2d", x, 4, "(N, C, H, W)");
  const Shape channels = {x.shape()[1]};
  for (const Shape& shape : {weight.shape(), bias.shape(), running_mean.shape(), running_var.shape()})
    require<ShapeError>(shape == channels, "batch_norm2d: per-channel tensor ", shape, " for input ", x.shape());
  require<ShapeError>(!options.training || options.others != nullptr || x.shape().count() > channels[0],
                      "batch_norm2d: expected more than 1 value per channel when training, got input ", x.shape());
  const bool with_residual = summand.defined();
  if (with_residual) require_floats("batch_norm2d", summand);
  require<ShapeError>(!with_residual || summand.shape() == x.shape(), "batch_norm2d: residual ", ShapeText{summand},
                      " for input ", x.shape());
  const Layout layout = x.value().layout();
  const Variable residual = with_residual ? to_layout(summand, layout) : summand;
  const Tensor y = result_of(x, x.shape(), layout);
  const Tensor mean = empty(channels, DType::f32, x.device()), inverse_std = empty(channels, DType::f32, x.device());
  backend(y).batch_norm2d_forward(x.value(), value_or_none(residual), weight.value(), bias.value(), running_mean,
                                  running_var, mean, inverse_std, y, options);
  return record(y, {&x, &weight, &bias, &residual}, [&] {
    return BatchNorm2dGradient{
        {x, "input"},   {options.relu ? y : Tensor(), "result"}, {weight, "weight"}, {bias, "bias"},
        {mean, "mean"}, {inverse_std, "inverse deviation"},      with_residual,      options};
  });
}

}  // namespace duet::ops
