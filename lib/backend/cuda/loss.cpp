// softmax, log_softmax, losses and accuracy.
#include <cstdint>

#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {

void CudaBackend::softmax_forward(const Tensor& x, const Tensor& y) {
  same_device("softmax_forward", {{"x", x}, {"y", y}});
  CudaDevice& device = on(x);
  kernels::softmax_forward(x.data<float>(), y.data<float>(), x.size(0), to_int(x.size(1), "classes"), device.stream());
}

void CudaBackend::softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  same_device("softmax_backward", {{"y", y}, {"dy", dy}, {"dx", dx}});
  CudaDevice& device = on(y);
  kernels::softmax_backward(y.data<float>(), dy.data<float>(), dx.data<float>(), y.size(0),
                            to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::log_softmax_forward(const Tensor& x, const Tensor& y) {
  same_device("log_softmax_forward", {{"x", x}, {"y", y}});
  CudaDevice& device = on(x);
  kernels::log_softmax_forward(x.data<float>(), nullptr, y.data<float>(), x.size(0), to_int(x.size(1), "classes"),
                               device.stream());
}

void CudaBackend::log_softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  same_device("log_softmax_backward", {{"y", y}, {"dy", dy}, {"dx", dx}});
  CudaDevice& device = on(y);
  kernels::log_softmax_backward(y.data<float>(), dy.data<float>(), dx.data<float>(), y.size(0),
                                to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::nll_loss_forward(const Tensor& x, const Tensor& labels, float factor, const Tensor& loss) {
  same_device("nll_loss_forward", {{"x", x}, {"labels", labels}, {"loss", loss}});
  CudaDevice& device = on(x);
  kernels::nll_forward(x.data<float>(), labels.data<std::int64_t>(), factor, loss.data<float>(), {}, x.size(0),
                       to_int(x.size(1), "classes"), device.label_fault(), device.stream());
}

void CudaBackend::nll_loss_backward(const Tensor& dloss, const Tensor& labels, float factor, const Tensor& dx) {
  same_device("nll_loss_backward", {{"dloss", dloss}, {"labels", labels}, {"dx", dx}});
  CudaDevice& device = on(dx);
  kernels::nll_backward(dloss.data<float>(), labels.data<std::int64_t>(), factor, dx.data<float>(), dx.size(0),
                        to_int(dx.size(1), "classes"), device.stream());
}

void CudaBackend::log_softmax_nll_forward(const Tensor& y, const Tensor& labels, float factor, const Tensor& loss,
                                          float gradient_factor, const Tensor& dx) {
  same_device("log_softmax_nll_forward", {{"y", y}, {"labels", labels}, {"loss", loss}, {"dx", dx}});
  CudaDevice& device = on(y);
  kernels::nll_forward(y.data<float>(), labels.data<std::int64_t>(), factor, loss.data<float>(),
                       {.dx = dx.data<float>(), .factor = gradient_factor}, y.size(0), to_int(y.size(1), "classes"),
                       device.label_fault(), device.stream());
}

void CudaBackend::log_softmax_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float factor,
                                           const Tensor& dx) {
  same_device("log_softmax_nll_backward", {{"dloss", dloss}, {"y", y}, {"labels", labels}, {"dx", dx}});
  CudaDevice& device = on(y);
  kernels::log_softmax_nll_backward(dloss.data<float>(), y.data<float>(), labels.data<std::int64_t>(), factor,
                                    dx.data<float>(), y.size(0), to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::smoothed_nll_forward(const Tensor& y, const Tensor& labels, float smoothing, float factor,
                                       const Tensor& loss) {
  same_device("smoothed_nll_forward", {{"y", y}, {"labels", labels}, {"loss", loss}});
  CudaDevice& device = on(y);
  const int classes = to_int(y.size(1), "classes");
  const Tensor partials = empty({kernels::kSumPartials}, DType::f32, y.device());
  // The label's part, which also looks at the labels; then that of all classes.
  kernels::nll_forward(y.data<float>(), labels.data<std::int64_t>(), factor * (1 - smoothing), loss.data<float>(), {},
                       y.size(0), classes, device.label_fault(), device.stream());
  kernels::add_sum(y.data<float>(), -factor * smoothing / static_cast<float>(classes), loss.data<float>(),
                   partials.data<float>(), y.count(), device.stream());
}

void CudaBackend::smoothed_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float smoothing,
                                        float factor, const Tensor& dx) {
  same_device("smoothed_nll_backward", {{"dloss", dloss}, {"y", y}, {"labels", labels}, {"dx", dx}});
  CudaDevice& device = on(y);
  kernels::smoothed_nll_backward(dloss.data<float>(), y.data<float>(), labels.data<std::int64_t>(), smoothing, factor,
                                 dx.data<float>(), y.size(0), to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::mse_loss_forward(const Tensor& x, const Tensor& target, float factor, const Tensor& loss) {
  same_device("mse_loss_forward", {{"x", x}, {"target", target}, {"loss", loss}});
  CudaDevice& device = on(x);
  const Tensor partials = empty({kernels::kMsePartials}, DType::f32, x.device());
  kernels::mse_forward(x.data<float>(), target.data<float>(), factor, loss.data<float>(), partials.data<float>(),
                       x.count(), device.stream());
}

void CudaBackend::mse_loss_backward(const Tensor& dloss, const Tensor& x, const Tensor& target, float factor,
                                    const Tensor& dx) {
  same_device("mse_loss_backward", {{"dloss", dloss}, {"x", x}, {"target", target}, {"dx", dx}});
  CudaDevice& device = on(x);
  kernels::mse_backward(dloss.data<float>(), x.data<float>(), target.data<float>(), factor, dx.data<float>(), x.count(),
                        device.stream());
}

std::int64_t CudaBackend::count_in_top(const Tensor& x, const Tensor& labels, std::int64_t k) {
  same_device("count_in_top", {{"x", x}, {"labels", labels}});
  CudaDevice& device = on(x);
  if (x.count() == 0) return 0;
  const Tensor found = empty({1}, DType::i64, x.device());
  kernels::count_in_top(x.data<float>(), labels.data<std::int64_t>(), k, found.data<std::int64_t>(), x.size(0),
                        to_int(x.size(1), "classes"), device.stream());
  return *found.to(Device{}).data<std::int64_t>();
}

}  // namespace duet::cuda
