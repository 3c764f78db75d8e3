// Batch norm.
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/sizes.h"

namespace duet::cuda {
namespace {

kernels::BatchNormShape geometry(const Tensor& x) {
  return {.rows = x.size(0), .channels = to_int(x.size(1), "channels"), .pixels = x.size(2) * x.size(3)};
}

void require_alone(const BatchSums* others) {
  require<DeviceError>(others == nullptr, "batch norm over several devices (SyncBatchNorm) is for CPU devices so far");
}

}  // namespace

void CudaBackend::batch_norm2d_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                       const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                                       const Tensor& inverse_std, const Tensor& y, bool training, float momentum,
                                       float eps, BatchSums* others) {
  require_alone(others);
  same_device("batch_norm2d_forward", {{"x", x},
                                       {"weight", weight},
                                       {"bias", bias},
                                       {"running_mean", running_mean},
                                       {"running_var", running_var},
                                       {"mean", mean},
                                       {"inverse_std", inverse_std},
                                       {"y", y}});
  CudaDevice& device = on(x);
  kernels::batch_norm_forward(x.data<float>(), weight.data<float>(), bias.data<float>(), running_mean.data<float>(),
                              running_var.data<float>(), mean.data<float>(), inverse_std.data<float>(), y.data<float>(),
                              geometry(x), training, momentum, eps, device.stream());
}

void CudaBackend::batch_norm2d_backward(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                                        const Tensor& inverse_std, const Tensor& dx, const Tensor& dweight,
                                        const Tensor& dbias, bool training, BatchSums* others) {
  require_alone(others);
  same_device("batch_norm2d_backward", {{"x", x},
                                        {"dy", dy},
                                        {"weight", weight},
                                        {"mean", mean},
                                        {"inverse_std", inverse_std},
                                        {"dx", dx},
                                        {"dweight", dweight},
                                        {"dbias", dbias}});
  CudaDevice& device = on(x);
  kernels::batch_norm_backward(x.data<float>(), dy.data<float>(), weight.data<float>(), mean.data<float>(),
                               inverse_std.data<float>(), dx.defined() ? dx.data<float>() : nullptr,
                               dweight.data<float>(), dbias.data<float>(), geometry(x), training, device.stream());
}

}  // namespace duet::cuda
