// Optimizer updates, sums over devices, and batches from a data set that lies on the device.
#include <numeric>

#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {

void CudaBackend::sgd_step(const Tensor& value, const Tensor& gradient, const Tensor& momentum, const SGDRule& rule,
                           int share, int) {
  if (share > 0) return;
  same_device("sgd_step", {{"value", value}, {"gradient", gradient}, {"momentum", momentum}});
  const kernels::SGDFactors factors{.lr = rule.lr,
                                    .momentum = rule.momentum,
                                    .dampening = rule.dampening,
                                    .weight_decay = rule.weight_decay,
                                    .nesterov = rule.nesterov,
                                    .first = rule.first};
  kernels::sgd(value.data<float>(), gradient.data<float>(), momentum.defined() ? momentum.data<float>() : nullptr,
               value.count(), factors, on(value).stream());
}

void CudaBackend::sum_devices(std::span<const Tensor> parts, const Tensor& destination, bool accumulate, int share,
                              int) {
  if (share > 0) return;
  require<DeviceError>(parts.size() <= static_cast<std::size_t>(kernels::kMaxParts), "sum_devices: ", parts.size(),
                       " devices, at most ", kernels::kMaxParts);
  PooledVector<Tensor> here;  // until the kernel was asked for: then they may go, see Note [Order]
  kernels::Parts from{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    here.push_back(parts[i].to(destination.device()));
    from.at[i] = here[i].data<float>();
  }
  kernels::sum_parts(from, static_cast<int>(parts.size()), accumulate, destination.data<float>(), destination.count(),
                     on(destination).stream());
}

double CudaBackend::sum_of_squares(const Tensor& x) {
  same_device("sum_of_squares", {{"x", x}});
  CudaDevice& device = on(x);
  const Tensor partials = empty({kernels::kSquarePartials}, DType::f64, x.device());
  kernels::sum_of_squares(x.data<float>(), x.count(), partials.data<double>(), device.stream());
  const Tensor on_host = partials.to(Device{});
  const std::span<const double> sums = on_host.span<double>();
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void CudaBackend::gather_images(const Tensor& rows, const Tensor& labels, const Tensor& indices, float mean,
                                float deviation, const Tensor& y, const Tensor& picked) {
  same_device("gather_images",
              {{"rows", rows}, {"labels", labels}, {"indices", indices}, {"y", y}, {"picked", picked}});
  const kernels::LabelledRows from{.bytes = rows.data<std::uint8_t>(),
                                   .row_bytes = rows.shape().count_from(1),
                                   .labels = labels.defined() ? labels.data<std::int64_t>() : nullptr};
  kernels::gather_images(from, indices.data<std::int64_t>(), indices.count(), mean, deviation, y.data<float>(),
                         picked.defined() ? picked.data<std::int64_t>() : nullptr, on(y).stream());
}

}  // namespace duet::cuda
