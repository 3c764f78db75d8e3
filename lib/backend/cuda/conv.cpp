// Convolutions by cuDNN.
#include <cstdint>

#include "lib/backend/cuda/conv_support.h"
#include "lib/backend/cuda/sizes.h"

namespace duet::cuda {
namespace {

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.raw()) % kConvAlignment == 0; }

void copy_on_device(CudaDevice& device, const Tensor& from, const Tensor& to) {
  check(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, device.stream()),
        current_operator());
}

}  // namespace

ConvOperand::ConvOperand(CudaDevice& device, const Tensor& tensor) : data_(tensor.data<float>()) {
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

ConvResult::ConvResult(const Tensor& tensor) : tensor_(tensor) {
  if (!is_aligned(tensor)) copy_ = empty(tensor.shape(), DType::f32, tensor.device());
}

void ConvResult::finish(CudaDevice& device) const {
  if (copy_.defined()) copy_on_device(device, copy_, tensor_);
}

void convolve(CudaDevice& device, ConvPass pass, const Shape& x, const Shape& w, const Window2d& window,
              const ConvOperand& a, const ConvOperand& b, const Tensor& result) {
  ConvPlan& plan = device.conv_plans().plan(device.cudnn(), {pass, x[0], x[1], x[2], x[3], w[0], x[1] / w[1], window,
                                                             device.precision(), device.deterministic()});
  const ConvResult place(result);
  plan.run(device, a.data(), b.data(), place.data());
  place.finish(device);
}

void clear(CudaDevice& device, const Tensor& tensor) {
  check(cudaMemsetAsync(tensor.raw(), 0, tensor.bytes(), device.stream()), current_operator());
}

Layout CudaBackend::conv2d_layout(const Shape&, const Shape&) const { return Layout::plain; }

void CudaBackend::conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                 const Window2d& window) {
  same_device("conv2d_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  if (y.count() == 0) return;
  convolve(device, ConvPass::forward, x.shape(), w.shape(), window, {device, x}, {device, w}, y);
  to_int(y.shape().count_from(1), "elements of an image");
  if (b.defined())
    kernels::add_channel_bias(y.data<float>(), b.data<float>(), y.size(0), to_int(y.size(1), "channels"),
                              y.size(2) * y.size(3), device.stream());
}

void CudaBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  same_device("conv2d_backward_data", {{"dy", dy}, {"w", w}, {"dx", dx}});
  CudaDevice& device = on(dy);
  if (dx.count() == 0) return;
  convolve(device, ConvPass::backward_data, dx.shape(), w.shape(), window, {device, dy}, {device, w}, dx);
}

void CudaBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                          const Window2d& window) {
  same_device("conv2d_backward_weights", {{"x", x}, {"dy", dy}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  if (x.size(0) == 0) {
    clear(device, dw);
  } else {
    convolve(device, ConvPass::backward_weights, x.shape(), dw.shape(), window, {device, x}, {device, dy}, dw);
  }
  if (db.defined())
    kernels::channel_bias_gradient(dy.data<float>(), nullptr, 1.0f, db.data<float>(), dy.size(0),
                                   to_int(dy.size(1), "channels"), dy.size(2) * dy.size(3), device.stream());
}

}  // namespace duet::cuda
