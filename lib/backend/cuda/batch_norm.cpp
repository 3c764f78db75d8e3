// Batch norm.
#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {
namespace {

kernels::BatchNormShape geometry(const Tensor& x) {
  return {.rows = x.size(0), .channels = to_int(x.size(1), "channels"), .pixels = x.size(2) * x.size(3)};
}

void require_alone(const BatchSums* others) {
  require<DeviceError>(others == nullptr, "batch norm over several devices (SyncBatchNorm) is for CPU devices so far");
}

}  // namespace

void CudaBackend::batch_norm2d_forward(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                       const Tensor& bias, const Tensor& running_mean, const Tensor& running_var,
                                       const Tensor& mean, const Tensor& inverse_std, const Tensor& y,
                                       const BatchNorm2dOptions& options) {
  require_alone(options.others);
  same_device("batch_norm2d_forward", {{"x", x},
                                       {"residual", residual},
                                       {"weight", weight},
                                       {"bias", bias},
                                       {"running_mean", running_mean},
                                       {"running_var", running_var},
                                       {"mean", mean},
                                       {"inverse_std", inverse_std},
                                       {"y", y}});
  CudaDevice& device = on(x);
  kernels::batch_norm_forward(x.data<float>(), data_or_null(residual), weight.data<float>(), bias.data<float>(),
                              running_mean.data<float>(), running_var.data<float>(), mean.data<float>(),
                              inverse_std.data<float>(), y.data<float>(), geometry(x), options.training, options.relu,
                              options.momentum, options.eps, device.stream());
}

void CudaBackend::batch_norm2d_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                                        const Tensor& bias, const Tensor& mean, const Tensor& inverse_std,
                                        const Tensor& dx, const Tensor& dresidual, const Tensor& dweight,
                                        const Tensor& dbias, const BatchNorm2dOptions& options) {
  require_alone(options.others);
  same_device("batch_norm2d_backward", {{"x", x},
                                        {"y", y},
                                        {"dy", dy},
                                        {"weight", weight},
                                        {"bias", bias},
                                        {"mean", mean},
                                        {"inverse_std", inverse_std},
                                        {"dx", dx},
                                        {"dresidual", dresidual},
                                        {"dweight", dweight},
                                        {"dbias", dbias}});
  CudaDevice& device = on(x);
  kernels::batch_norm_backward(x.data<float>(), data_or_null(y), dy.data<float>(), weight.data<float>(),
                               mean.data<float>(), inverse_std.data<float>(), data_or_null(dx), data_or_null(dresidual),
                               dweight.data<float>(), dbias.data<float>(), geometry(x), options.training,
                               device.stream());
}

}  // namespace duet::cuda
