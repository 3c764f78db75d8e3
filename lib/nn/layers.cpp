#include "lib/nn/layers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/autograd/check_finite.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/ops/ops.h"

namespace duet::nn {
namespace {

/// kaiming_uniform_(a = sqrt(5)) as torch/nn/init.py computes it, in double.
void fill_weight(std::span<float> values, Mt19937& generator, std::int64_t fan_in) {
  const double gain = std::sqrt(2.0 / (1.0 + 5.0));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(fan_in)));
  generator.uniform(values, -bound, bound);
}

void fill_bias(std::span<float> values, Mt19937& generator, std::int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  generator.uniform(values, -bound, bound);
}

/// The numbers of a convolution with square kernels, for its text.
struct SquareConv {
  std::int64_t in, out, kernel, stride, padding, output_padding, groups;
  bool bias;
};
std::string conv_text(const SquareConv& c) {
  const auto pair = [](std::int64_t a) { return concat("(", a, ", ", a, ")"); };
  std::string text = concat(c.in, ", ", c.out, ", kernel_size=", pair(c.kernel), ", stride=", pair(c.stride));
  if (c.padding > 0) text += ", padding=" + pair(c.padding);
  if (c.output_padding > 0) text += ", output_padding=" + pair(c.output_padding);
  if (c.groups > 1) text += concat(", groups=", c.groups);
  if (!c.bias) text += ", bias=False";
  return text;
}

/// The window of a pooling layer: a stride of 0 is the kernel's size.
Window2d square_window(std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  const std::int64_t step = stride != 0 ? stride : kernel;
  return {kernel, kernel, step, step, padding, padding};
}

}  // namespace

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool bias)
    : in_(in_features), out_(out_features), bias_(bias) {
  require<UsageError>(in_ > 0 && out_ > 0, "Linear: ", in_, " to ", out_, " features, expected 1 or more");
  register_parameter("weight", {out_, in_}, [in = in_](auto values, auto& g) { fill_weight(values, g, in); });
  if (bias_) register_parameter("bias", {out_}, [in = in_](auto values, auto& g) { fill_bias(values, g, in); });
}

Variable Linear::forward(Context& context, const Variable& x) const {
  return name_errors([&] { return ops::linear(x, weight(context), bias(context)); });
}

std::string Linear::details() const {
  return concat("in_features=", in_, ", out_features=", out_, ", bias=", bias_ ? "True" : "False");
}

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel_size,
               const Conv2dOptions& options)
    : in_(in_channels),
      out_(out_channels),
      window_{kernel_size, kernel_size, options.stride, options.stride, options.padding, options.padding},
      bias_(options.bias),
      groups_(options.groups) {
  require<UsageError>(in_ > 0 && out_ > 0 && kernel_size > 0 && options.stride > 0 && options.padding >= 0,
                      "Conv2d: ", in_, " to ", out_, " channels, kernel ", kernel_size, ", stride ", options.stride,
                      ", padding ", options.padding, " make no convolution");
  require<UsageError>(groups_ > 0 && in_ % groups_ == 0 && out_ % groups_ == 0, "Conv2d: ", in_, " to ", out_,
                      " channels in ", groups_, " groups, expected groups that divide both");
  const std::int64_t fan_in = in_ / groups_ * kernel_size * kernel_size;
  register_parameter("weight", {out_, in_ / groups_, kernel_size, kernel_size},
                     [fan_in](auto values, auto& g) { fill_weight(values, g, fan_in); });
  if (bias_) register_parameter("bias", {out_}, [fan_in](auto values, auto& g) { fill_bias(values, g, fan_in); });
}

Variable Conv2d::forward(Context& context, const Variable& x) const {
  return name_errors([&] { return ops::conv2d(x, weight(context), bias(context), window_, groups_); });
}

std::string Conv2d::details() const {
  return conv_text({in_, out_, window_.kernel_h, window_.stride_h, window_.pad_h, 0, groups_, bias_});
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel_size,
                                 const ConvTranspose2dOptions& options)
    : in_(in_channels), out_(out_channels), kernel_(kernel_size), options_(options) {
  const std::int64_t groups = options.groups;
  require<UsageError>(in_ > 0 && out_ > 0 && kernel_ > 0 && options.padding >= 0 && options.output_padding >= 0 &&
                          options.output_padding < options.stride,
                      "ConvTranspose2d: ", in_, " to ", out_, " channels, kernel ", kernel_, ", stride ",
                      options.stride, ", padding ", options.padding, ", output padding ", options.output_padding,
                      " make no convolution");
  require<UsageError>(groups > 0 && in_ % groups == 0 && out_ % groups == 0, "ConvTranspose2d: ", in_, " to ", out_,
                      " channels in ", groups, " groups, expected groups that divide both");
  const std::int64_t fan_in = out_ / groups * kernel_ * kernel_;
  register_parameter("weight", {in_, out_ / groups, kernel_, kernel_},
                     [fan_in](auto values, auto& g) { fill_weight(values, g, fan_in); });
  if (options.bias)
    register_parameter("bias", {out_}, [fan_in](auto values, auto& g) { fill_bias(values, g, fan_in); });
}

Variable ConvTranspose2d::forward(Context& context, const Variable& x) const {
  return name_errors([&] {
    const Window2d window = {kernel_, kernel_, options_.stride, options_.stride, options_.padding, options_.padding};
    return ops::conv_transpose2d(x, parameter(context, 0), options_.bias ? parameter(context, 1) : Variable(), window,
                                 options_.output_padding, options_.groups);
  });
}

std::string ConvTranspose2d::details() const {
  return conv_text(
      {in_, out_, kernel_, options_.stride, options_.padding, options_.output_padding, options_.groups, options_.bias});
}

Dropout::Dropout(double p) : p_(p) { ops::require_probability("Dropout", p); }

DropoutKey Dropout::next_key(Context& context, const Tensor& x) const {
  const std::uint32_t number = layer(context);
  return training() && p_ > 0 ? key_of(context, x, p_, number) : DropoutKey{.layer = number};
}

DropoutKey Dropout::key_of(Context& context, const Tensor& x, double p, std::uint32_t layer) {
  require<UsageError>(!checks_finite() || !context.stamped || x.stamp().known(),
                      "Dropout: its input has no stamp, but the model's input has: an operator in between has dropped "
                      "it, so the mask would not depend on the batch's step and rows");
  return {context.next_seed(layer, x), context.step_of(x), layer, static_cast<float>(p)};
}

Variable Dropout::drop_by_stream(Context& context, const Variable& x, double p) {
  require<UsageError>(!Recovery::instance().on(),
                      "Dropout: it draws from a stream, and so would draw other numbers in a step that an elastic "
                      "job does again");
  return ops::dropout(x, static_cast<float>(p), *context.stream);
}

Variable Dropout::forward(Context& context, const Variable& x) const {
  return name_errors([&] {
    if (training() && p_ > 0 && context.stream != nullptr) return drop_by_stream(context, x, p_);
    return ops::dropout(x, next_key(context, x.value()));
  });
}

std::string Dropout::details() const { return concat("p=", python_float(p_), ", inplace=False"); }

Variable ReLU::forward(Context&, const Variable& x) const { return name_errors(ops::relu, x); }

MaxPool2d::MaxPool2d(std::int64_t kernel_size, std::int64_t stride, std::int64_t padding)
    : window_(square_window(kernel_size, stride, padding)) {}

Variable MaxPool2d::forward(Context&, const Variable& x) const { return name_errors(ops::max_pool2d, x, window_); }

std::string MaxPool2d::details() const {
  return concat("kernel_size=", window_.kernel_h, ", stride=", window_.stride_h, ", padding=", window_.pad_h,
                ", dilation=1, ceil_mode=False");
}

AvgPool2d::AvgPool2d(std::int64_t kernel_size, std::int64_t stride, std::int64_t padding, bool count_include_pad)
    : window_(square_window(kernel_size, stride, padding)), count_include_pad_(count_include_pad) {}

Variable AvgPool2d::forward(Context&, const Variable& x) const {
  return name_errors([&] { return ops::avg_pool2d(x, window_, count_include_pad_); });
}

std::string AvgPool2d::details() const {
  return concat("kernel_size=", window_.kernel_h, ", stride=", window_.stride_h, ", padding=", window_.pad_h);
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
  require<UsageError>(height > 0 && width > 0, "AdaptiveAvgPool2d: an output of ", height, "x", width,
                      " pixels, expected 1x1 or more");
}

Variable AdaptiveAvgPool2d::forward(Context&, const Variable& x) const {
  return name_errors([&] { return ops::adaptive_avg_pool2d(x, height_, width_); });
}

std::string AdaptiveAvgPool2d::details() const { return concat("output_size=(", height_, ", ", width_, ")"); }

Variable Flatten::forward(Context&, const Variable& x) const { return name_errors(ops::flatten, x); }
Variable Softmax::forward(Context&, const Variable& x) const { return name_errors(ops::softmax, x, dim_); }
Variable LogSoftmax::forward(Context&, const Variable& x) const { return name_errors(ops::log_softmax, x, dim_); }
Variable Sigmoid::forward(Context&, const Variable& x) const { return name_errors(ops::sigmoid, x); }
Variable Tanh::forward(Context&, const Variable& x) const { return name_errors(ops::tanh, x); }
Variable GELU::forward(Context&, const Variable& x) const { return name_errors(ops::gelu, x); }
Variable LeakyReLU::forward(Context&, const Variable& x) const { return name_errors(ops::leaky_relu, x, slope_); }

std::string LeakyReLU::details() const { return concat("negative_slope=", python_float(slope_)); }

LayerNorm::LayerNorm(const Shape& normalised, double eps, bool bias) : normalised_(normalised), eps_(eps), bias_(bias) {
  register_parameter("weight", normalised, init::constant(1));
  if (bias_) register_parameter("bias", normalised, init::constant(0));
}

Variable LayerNorm::forward(Context& context, const Variable& x) const {
  return name_errors([&] {
    return ops::layer_norm(x, normalised_, parameter(context, 0), bias_ ? parameter(context, 1) : Variable(), eps_);
  });
}

std::string LayerNorm::details() const {
  std::string shape = normalised_.str().substr(1);
  shape.back() = ')';
  if (normalised_.rank() == 1) shape.insert(shape.size() - 1, ",");
  return concat("(", shape, ", eps=", python_float(eps_), ", elementwise_affine=True, bias=", bias_ ? "True" : "False");
}

Embedding::Embedding(std::int64_t embeddings, std::int64_t dim) : embeddings_(embeddings), dim_(dim) {
  require<UsageError>(embeddings > 0 && dim > 0, "Embedding: ", embeddings, " of ", dim,
                      " numbers each, expected 1 or more");
  register_parameter("weight", {embeddings, dim}, init::normal(0, 1));
}

Variable Embedding::forward(Context& context, const Variable& indices) const {
  return name_errors([&] { return ops::embedding(weight(context), indices.defined() ? indices.value() : Tensor()); });
}

BatchNorm2d::BatchNorm2d(std::int64_t features, float eps, float momentum)
    : features_(features), eps_(eps), momentum_(momentum) {
  register_parameter("weight", {features}, [](auto values, auto&) { std::ranges::fill(values, 1.0f); });
  register_parameter("bias", {features}, [](auto values, auto&) { std::ranges::fill(values, 0.0f); });
  const Tensor ones = from_values({features}, std::vector<float>(static_cast<std::size_t>(features), 1.0f));
  register_buffer("running_mean", zeros({features}));
  register_buffer("running_var", ones);
  register_buffer("num_batches_tracked", zeros({}, DType::i64));
}

Variable BatchNorm2d::normalise(Context& context, const Variable& x, bool relu, const Variable& residual) const {
  const BatchNorm2dOptions options = {
      .training = training(), .momentum = momentum_, .eps = eps_, .others = sums(context), .relu = relu};
  Variable y = ops::batch_norm2d(x, parameter(context, 0), parameter(context, 1), buffer(context, 0),
                                 buffer(context, 1), options, residual);
  const Tensor& batches = buffer(context, 2);
  if (training()) backend(batches).increment(batches);
  return y;
}

Variable BatchNorm2d::forward(Context& context, const Variable& x) const {
  return name_errors([&] { return normalise(context, x, false, {}); });
}

Variable BatchNorm2d::forward_relu(Context& context, const Variable& x, const Variable& residual) const {
  return name_errors([&] {
    // One by one CheckFinite sees a result of -infinity, which relu would hide.
    if (context.fuse && !checks_finite()) return normalise(context, x, true, residual);
    const Variable y = normalise(context, x, false, {});
    return ops::relu(residual.defined() ? ops::add(y, residual) : y);
  });
}

std::string BatchNorm2d::details() const {
  return concat(features_, ", eps=", python_float(eps_), ", momentum=", python_float(momentum_),
                ", affine=True, bias=True, track_running_stats=True");
}

}  // namespace duet::nn
