// Convolutions by cuDNN, and by own kernels where those are faster.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "lib/backend/cuda/conv_plan.h"
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_recorder.h"

namespace duet::cuda {
namespace {

/// cuDNN's fastest kernels load four floats at a time.
constexpr std::size_t kConvAlignment = 16;

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.raw()) % kConvAlignment == 0; }

void copy_on_device(CudaDevice& device, const Tensor& from, const Tensor& to) {
  check(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, device.stream()),
        current_operator());
}

/// An argument as the device's convolutions take it: rounded, where the precision requires it, and at an aligned
/// address: parameters are views at any place of a flat buffer. Anything else is the tensor itself.
class ConvOperand {
 public:
  ConvOperand(CudaDevice& device, const Tensor& tensor) : data_(tensor.data<float>()) {
    const bool rounds = device.precision() == Precision::bf16;
    if (!rounds && is_aligned(tensor)) return;
    copy_ = empty(tensor.shape(), DType::f32, tensor.device());
    if (rounds) {
      kernels::round_to_bfloat16(data_, copy_.data<float>(), tensor.count(), device.stream());
    } else {
      copy_on_device(device, tensor, copy_);
    }
    data_ = copy_.data<float>();
  }
  const float* data() const { return data_; }

 private:
  Tensor copy_;
  const float* data_;
};

/// The place of a result: the tensor itself, or aligned memory that finish() copies to it.
class ConvResult {
 public:
  explicit ConvResult(const Tensor& tensor) : tensor_(tensor) {
    if (!is_aligned(tensor)) copy_ = empty(tensor.shape(), DType::f32, tensor.device());
  }
  float* data() const { return (copy_.defined() ? copy_ : tensor_).data<float>(); }
  void finish(CudaDevice& device) const {
    if (copy_.defined()) copy_on_device(device, copy_, tensor_);
  }

 private:
  const Tensor& tensor_;
  Tensor copy_;
};

/// The elements of a convolution's result.
std::int64_t results_of(const Shape& x, const Shape& w, const Window2d& window) {
  return x[0] * w[0] * window.out_h(x[2]) * window.out_w(x[3]);
}

/// Whether there is nothing to add up.
bool is_empty(const Shape& x, const Shape& w, const Window2d& window) {
  return x.count() == 0 || w.count() == 0 || results_of(x, w, window) == 0;
}

/// The convolution's sizes, if own kernels compute it: on tensor cores, where the filters are few enough that a library
/// spends most of its time on laying images out anew.
std::optional<kernels::Conv3x3> on_tensor_cores(const CudaDevice& device, const Shape& x, const Shape& w,
                                                const Window2d& window) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max() - 512, kMostFilters = 32 * 64;  // tiles are smaller
  const Window2d conv = {3, 3, 1, 1, window.pad_h, window.pad_w};
  const bool suits = window == conv && window.pad_h < 3 && window.pad_w < 3 && x[1] == w[1];
  if (device.precision() == Precision::fp32 || !suits || w[0] * w[1] > kMostFilters) return {};
  if (is_empty(x, w, window) || x.count() > kMost || results_of(x, w, window) > kMost) return {};
  return kernels::Conv3x3{.rows = static_cast<int>(x[0]),
                          .channels = static_cast<int>(x[1]),
                          .outputs = static_cast<int>(w[0]),
                          .height = static_cast<int>(x[2]),
                          .width = static_cast<int>(x[3]),
                          .pad_h = static_cast<int>(window.pad_h),
                          .pad_w = static_cast<int>(window.pad_w),
                          .rounds = device.precision() == Precision::bf16};
}

/// The gradients of filters and of images by own kernels.
void weights_on_tensor_cores(CudaDevice& device, const Tensor& x, const kernels::ConvImage& dy, const Tensor& dw,
                             const kernels::Conv3x3& shape) {
  const Tensor partials = empty({kernels::conv3x3_partials(shape, dy.index != nullptr)}, DType::f32, x.device());
  kernels::conv3x3_weights(x.data<float>(), dy, partials.data<float>(), dw.data<float>(), shape, device.stream());
}
void data_on_tensor_cores(CudaDevice& device, const kernels::ConvImage& dy, const Tensor& w, const Tensor& dx,
                          const kernels::Conv3x3& shape) {
  const kernels::Conv3x3 back{.rows = shape.rows,
                              .channels = shape.outputs,
                              .outputs = shape.channels,
                              .height = shape.out_height(),
                              .width = shape.out_width(),
                              .pad_h = 2 - shape.pad_h,
                              .pad_w = 2 - shape.pad_w,
                              .rounds = shape.rounds};
  kernels::conv3x3(dy, w.data<float>(), true, dx.data<float>(), back, device.stream());
}

/// Fills a tensor with zeros.
void clear(CudaDevice& device, const Tensor& tensor) {
  if (tensor.count() == 0) return;
  check(cudaMemsetAsync(tensor.raw(), 0, tensor.bytes(), device.stream()), current_operator());
}

/// One pass of the convolution of x (N, C, H, W) with w (K, C / groups, R, S). For a, b and the result see
/// ConvPlan::run.
void convolve(CudaDevice& device, ConvPass pass, const Shape& x, const Shape& w, const Window2d& window,
              const ConvOperand& a, const ConvOperand& b, const Tensor& result) {
  if (is_empty(x, w, window)) return clear(device, result);
  ConvPlan& plan = device.conv_plans().plan(device.cudnn(), {pass, x[0], x[1], x[2], x[3], w[0], x[1] / w[1], window,
                                                             device.precision(), device.deterministic()});
  const ConvResult place(result);
  plan.run(device, a.data(), b.data(), place.data());
  place.finish(device);
}

}  // namespace

Layout CudaBackend::conv2d_layout(const Shape&, const Shape&) const { return Layout::plain; }

void CudaBackend::conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                 const Window2d& window) {
  same_device("conv2d_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  if (y.count() == 0) return;
  if (const auto shape = on_tensor_cores(device, x.shape(), w.shape(), window)) {
    kernels::conv3x3({x.data<float>(), nullptr, 1.0f}, w.data<float>(), false, y.data<float>(), *shape,
                     device.stream());
  } else {
    convolve(device, ConvPass::forward, x.shape(), w.shape(), window, {device, x}, {device, w}, y);
  }
  to_int(y.shape().count_from(1), "elements of an image");
  if (b.defined())
    kernels::add_channel_bias(y.data<float>(), b.data<float>(), y.size(0), to_int(y.size(1), "channels"),
                              y.size(2) * y.size(3), device.stream());
}

void CudaBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  same_device("conv2d_backward_data", {{"dy", dy}, {"w", w}, {"dx", dx}});
  CudaDevice& device = on(dy);
  if (const auto shape = on_tensor_cores(device, dx.shape(), w.shape(), window))
    return data_on_tensor_cores(device, {dy.data<float>(), nullptr, 1.0f}, w, dx, *shape);
  convolve(device, ConvPass::backward_data, dx.shape(), w.shape(), window, {device, dy}, {device, w}, dx);
}

void CudaBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                          const Window2d& window) {
  same_device("conv2d_backward_weights", {{"x", x}, {"dy", dy}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  if (const auto shape = on_tensor_cores(device, x.shape(), dw.shape(), window)) {
    weights_on_tensor_cores(device, x, {dy.data<float>(), nullptr, 1.0f}, dw, *shape);
  } else {
    convolve(device, ConvPass::backward_weights, x.shape(), dw.shape(), window, {device, x}, {device, dy}, dw);
  }
  if (db.defined())
    kernels::channel_bias_gradient(dy.data<float>(), nullptr, 1.0f, db.data<float>(), dy.size(0),
                                   to_int(dy.size(1), "channels"), dy.size(2) * dy.size(3), device.stream());
}

// The fused operator dropout(relu(max_pool2d(conv2d(x)))): cuDNN's convolution, and one own kernel for all the rest; or
// own kernels only, for images of one channel and on tensor cores.

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

/// As on_tensor_cores, with a 2x2 pool that tiles the whole result.
std::optional<kernels::Conv3x3> pooled_on_tensor_cores(const CudaDevice& device, const Shape& x, const Shape& w,
                                                       const ConvPoolRelu& op) {
  const auto shape = on_tensor_cores(device, x, w, op.conv);
  const bool suits =
      op.pool == Window2d{2, 2, 2, 2, 0, 0} && shape && shape->out_height() % 2 == 0 && shape->out_width() % 2 == 0;
  return suits ? shape : std::nullopt;
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
  std::optional<kernels::StepDraw> draw;
  if (op.dropout.p > 0) draw = device.recorder().draw(op.dropout, x.stamp_or_self());
  if (const auto shape = pooled_on_tensor_cores(device, x.shape(), w.shape(), op))
    return kernels::conv3x3_pool_forward(x.data<float>(), w.data<float>(), b.data<float>(), y.data<float>(),
                                         index.data<std::uint8_t>(), draw ? &*draw : nullptr, op.dropout.scale(),
                                         *shape, device.stream());
  const Tensor image = empty(image_shape(x, w, op), DType::f32, x.device());
  convolve(device, ConvPass::forward, x.shape(), w.shape(), op.conv, {device, x}, {device, w}, image);
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
  if (dy.count() == 0) {
    clear(device, dw);
    if (dx.defined()) clear(device, dx);
    return bias();
  }
  if (const auto shape = pooled_on_tensor_cores(device, x.shape(), w.shape(), op)) {
    const kernels::ConvImage gradient = {dy.data<float>(), places, scale};
    const auto weights = [&] {
      weights_on_tensor_cores(device, x, gradient, dw, *shape);
      bias();
    };
    return device.beside(weights, [&] {
      if (dx.defined()) data_on_tensor_cores(device, gradient, w, dx, *shape);
    });
  }
  const Tensor image = empty(image_shape(x, w, op), DType::f32, x.device());
  kernels::bias_pool_relu_backward(dy.data<float>(), places, scale, image.data<float>(), tiles(image.shape(), op),
                                   device.stream());
  const ConvOperand gradient(device, image);
  const auto weights = [&] {
    convolve(device, ConvPass::backward_weights, x.shape(), w.shape(), op.conv, {device, x}, gradient, dw);
    bias();
  };
  device.beside(weights, [&] {
    if (dx.defined())
      convolve(device, ConvPass::backward_data, x.shape(), w.shape(), op.conv, gradient, {device, w}, dx);
  });
}

}  // namespace duet::cuda
