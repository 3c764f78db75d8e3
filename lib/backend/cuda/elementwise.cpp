// Elementwise operators and dropout; optimizer updates, sums over devices, and batches from a data set that lies on
// the device.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_recorder.h"
#include "lib/backend/cuda/memory.h"

namespace duet::cuda {

void CudaBackend::relu_forward(const Tensor& x, const Tensor& y) {
  same_device("relu_forward", {{"x", x}, {"y", y}});
  kernels::relu(x.data<float>(), y.data<float>(), x.count(), on(x).stream());
}

void CudaBackend::relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  same_device("relu_backward", {{"y", y}, {"dy", dy}, {"dx", dx}});
  kernels::relu_backward(y.data<float>(), dy.data<float>(), dx.data<float>(), y.count(), on(y).stream());
}

void CudaBackend::dropout_mask(const Tensor& mask, const DropoutKey& key) {
  CudaDevice& device = on(mask);
  to_int(mask.shape().count_from(1), "elements of a row");
  kernels::dropout_mask(mask.data<std::uint8_t>(), mask.size(0), mask.shape().count_from(1),
                        device.recorder().draw(key, mask.stamp_or_self()), device.stream());
}

void CudaBackend::dropout_apply(const Tensor& x, const Tensor& mask, float scale, const Tensor& y) {
  same_device("dropout_apply", {{"x", x}, {"mask", mask}, {"y", y}});
  kernels::mask_scale(x.data<float>(), mask.data<std::uint8_t>(), scale, y.data<float>(), x.count(), on(x).stream());
}

void CudaBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  same_device("add", {{"a", a}, {"b", b}, {"y", y}});
  kernels::add(a.data<float>(), b.data<float>(), y.data<float>(), a.count(), on(a).stream());
}

void CudaBackend::scale(const Tensor& x, float factor) {
  kernels::scale(x.data<float>(), factor, x.count(), on(x).stream());
}

void CudaBackend::fill(const Tensor& x, float value) {
  kernels::fill(x.data<float>(), value, x.count(), on(x).stream());
}

void CudaBackend::increment(const Tensor& counter) {
  kernels::advance(reinterpret_cast<std::uint64_t*>(counter.data<std::int64_t>()), 1, on(counter).stream());
}

namespace {

void require_few(const char* op, std::size_t devices) {
  require<DeviceError>(devices <= static_cast<std::size_t>(kernels::kMaxParts), op, ": ", devices, " devices, at most ",
                       kernels::kMaxParts);
}

/// A barrier of the devices' streams: work enqueued from now on runs after all work enqueued so far.
void synchronize_streams(std::span<CudaDevice* const> devices) {
  join_streams(devices);
  fork_streams(devices);
}

/// Every destination = the sum of the parts: device d adds up the d-th slice, which it reads from all devices and
/// writes to all of them.
void all_reduce_over_peers(std::span<const Tensor> parts, std::span<const Tensor> destinations,
                           std::span<CudaDevice* const> devices) {
  const auto count = static_cast<std::int64_t>(devices.size()), n = parts[0].count();
  const auto begin_of = [&](std::int64_t d) { return d == count ? n : n * d / count / 4 * 4; };  // in whole float4s
  synchronize_streams(devices);
  for (std::int64_t d = 0; d < count; ++d) {
    CudaDevice& own = *devices[static_cast<std::size_t>(d)];
    const std::int64_t begin = begin_of(d), size = begin_of(d + 1) - begin;
    kernels::Parts from{};
    kernels::Sums to{};
    for (std::size_t i = 0; i < devices.size(); ++i) {
      from.at[i] = parts[i].data<float>() + begin;
      to.at[i] = destinations[i].data<float>() + begin;
      if (devices[i] == &own) continue;
      for (CudaDevice* const end : {devices[i], &own})
        end->count_moved(2 * sizeof(float) * static_cast<std::uint64_t>(size));  // a part there, the sum back
    }
    own.activate();
    kernels::all_reduce(from, to, static_cast<int>(count), size, own.stream());
  }
  synchronize_streams(devices);
}

}  // namespace

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

void CudaBackend::adam_step(const Tensor& value, const Tensor& gradient, const Tensor& first, const Tensor& second,
                            const AdamRule& rule, int share, int) {
  if (share > 0) return;
  same_device("adam_step", {{"value", value}, {"gradient", gradient}, {"first", first}, {"second", second}});
  require<UsageError>(
      on(value).recording() == 0,
      "adam_step: a recorded step cannot be replayed, because the number of steps is part of the update; "
      "run steps with Adam without a StepGraph");
  kernels::adam(value.data<float>(), gradient.data<float>(), first.data<float>(), second.data<float>(), value.count(),
                arithmetic::factors_of(rule), on(value).stream());
}

void CudaBackend::sum_devices(std::span<const Tensor> parts, const Tensor& destination, bool accumulate, int share,
                              int) {
  if (share > 0) return;
  require_few("sum_devices", parts.size());
  PooledVector<Tensor> here;  // until the kernel is enqueued: then they may be released, see Note [Order]
  kernels::Parts from{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    here.push_back(parts[i].to(destination.device()));
    from.at[i] = here[i].data<float>();
  }
  kernels::sum_parts(from, static_cast<int>(parts.size()), accumulate, destination.data<float>(), destination.count(),
                     on(destination).stream());
}

// Where devices cannot access each other's memory, device d copies the d-th piece of all parts, adds them up, and the
// others copy the result. Either way every device sends and receives equally much, all at the same time.
void CudaBackend::all_reduce_devices(std::span<const Tensor> parts, std::span<const Tensor> destinations) {
  const std::size_t count = parts.size();
  require_few("all_reduce_devices", count);
  PooledVector<CudaDevice*> devices;
  for (std::size_t d = 0; d < count; ++d) {
    same_device("all_reduce_devices", {{"part", parts[d]}, {"destination", destinations[d]}});
    devices.push_back(&on(parts[d]));
  }
  if (devices_.can_access_all(devices)) return all_reduce_over_peers(parts, destinations, devices);
  const auto piece = [&](const Tensor& whole, std::size_t d) {
    const std::int64_t n = whole.count(), at = static_cast<std::int64_t>(d), of = static_cast<std::int64_t>(count);
    return whole.slice(n * at / of, {n * (at + 1) / of - n * at / of});
  };
  const auto bring = [&](const Tensor& from, std::size_t i, const Tensor& to, std::size_t d) {
    if (from.count() > 0) devices_.enqueue_copy(*devices[d], to.raw(), *devices[i], from.raw(), from.bytes());
  };
  PooledVector<Tensor> here;  // until all is enqueued
  synchronize_streams(devices);
  for (std::size_t d = 0; d < count; ++d) {
    const Tensor own = piece(destinations[d], d);
    kernels::Parts from{};
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor part = piece(parts[i], d);
      here.push_back(i == d ? part : empty(part.shape(), DType::f32, own.device()));
      if (i != d) bring(part, i, here.back(), d);
      from.at[i] = here.back().data<float>();
    }
    kernels::sum_parts(from, static_cast<int>(count), false, own.data<float>(), own.count(), on(own).stream());
  }
  synchronize_streams(devices);
  for (std::size_t d = 0; d < count; ++d)
    for (std::size_t i = 0; i < count; ++i)
      if (i != d) bring(piece(destinations[i], i), i, piece(destinations[d], i), d);
  synchronize_streams(devices);
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
  to_int(rows.shape().count_from(1), "bytes of a row");
  const kernels::LabelledRows from{.bytes = rows.data<std::uint8_t>(),
                                   .row_bytes = rows.shape().count_from(1),
                                   .labels = labels.defined() ? labels.data<std::int64_t>() : nullptr};
  kernels::gather_images(from, indices.data<std::int64_t>(), indices.count(), mean, deviation, y.data<float>(),
                         picked.defined() ? picked.data<std::int64_t>() : nullptr, on(y).stream());
}

}  // namespace duet::cuda
