// LibTorch's tensors as duet's process groups see them.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "lib/tensor.h"
#include "torch/device_order.h"

namespace duet::torch {

/// A parameter or buffer of a module, as LibTorch names it: "conv1.weight".
struct NamedTensorRef {
  std::string name;
  at::Tensor value;
};

inline std::string shape_text(const at::Tensor& tensor) { return concat(tensor.sizes(), " ", tensor.scalar_type()); }

/// Converts LibTorch's scalar type to duet's; nothing for types that duet has not.
inline std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    default: return std::nullopt;
  }
}

/// Throws UsageError that names the tensor for a dtype that duet does not sum.
inline DType dtype_of(const NamedTensorRef& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.value.scalar_type());
  require<UsageError>(dtype && tensor.value.is_floating_point(), tensor.name, " is ", shape_text(tensor.value),
                      ": duet sums gradients of Float, Double, Half and BFloat16");
  return *dtype;
}

/// Throws UsageError that names a tensor which is not dense.
inline void require_dense(const NamedTensorRef& tensor) {
  require<UsageError>(tensor.value.layout() == at::kStrided, tensor.name, " is ", concat(tensor.value.layout()),
                      ", expected a dense tensor");
}

/// Throws DeviceError that names the tensor unless it is in the host's memory, and UsageError unless it is dense.
inline void require_on_host(const NamedTensorRef& tensor) {
  require<DeviceError>(tensor.value.device().is_cpu(), tensor.name, " is on ", tensor.value.device().str(),
                       ": make the module on the CPU, duet moves its values");
  require_dense(tensor);
}

/// Whether the elements fill one run of memory, in any order of the dimensions.
inline bool is_one_run(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// Bytes of the tensor's elements.
inline std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * static_cast<std::size_t>(tensor.element_size());
}

/// A tensor as another one, over other memory of its device, which lives as long as `keep` does. Its strides are the
/// other's where these fill one run of memory.
inline at::Tensor tensor_over(void* data, const at::Tensor& like, const std::shared_ptr<void>& keep = nullptr) {
  at::TensorMaker maker = at::for_blob(data, like.sizes());
  if (is_one_run(like)) maker.strides(like.strides());
  if (keep) maker.deleter([keep](void*) {});
  return maker.options(like.options().requires_grad(false)).target_device(like.device()).make_tensor();
}

/// Bytes of the tensor, and room behind them up to a multiple of 64.
inline std::size_t aligned_bytes_of(const at::Tensor& tensor) { return (bytes_of(tensor) + 63) / 64 * 64; }

/// Copies the root's values to all ranks, at once. All ranks give tensors of the same shapes, dtypes and strides, all
/// on one device.
inline void broadcast_together(ddp::ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Device device = tensors[0].device();
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += aligned_bytes_of(tensor);
  const auto count = static_cast<std::int64_t>(bytes);
  const at::Tensor together = at::zeros({count}, at::TensorOptions(at::kByte).device(device));
  const auto copy_all = [&](bool out) {
    std::uint8_t* at = together.data_ptr<std::uint8_t>();
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor piece = tensor_over(at, tensor);
      out ? at::Tensor(tensor).copy_(piece) : at::Tensor(piece).copy_(tensor);
      at += aligned_bytes_of(tensor);
    }
  };
  if (group.rank() == root) copy_all(false);
  {
    const DuetWork work(device);
    group.broadcast({together.data_ptr(), count, DType::u8, work.device()}, root).wait();
    work.before_torch();
  }
  if (group.rank() != root) copy_all(true);
}

}  // namespace duet::torch
