// LibTorch's tensors as duet's process groups see them.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::torch {

/// A parameter or buffer of a module, as LibTorch names it: "conv1.weight".
struct NamedTensorRef {
  std::string name;
  at::Tensor value;
};

inline std::string shape_text(const at::Tensor& tensor) { return concat(tensor.sizes(), " ", tensor.scalar_type()); }

/// The same numbers as duet names them; nothing for those that it has not.
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

/// Throws DeviceError that names the tensor unless it is dense and in the host's memory.
inline void require_on_host(const NamedTensorRef& tensor) {
  require<DeviceError>(tensor.value.device().is_cpu(), tensor.name, " is on ", tensor.value.device().str(),
                       ": duet's wrappers of LibTorch modules are built for CPU tensors");
  require<UsageError>(tensor.value.layout() == at::kStrided, tensor.name, " is ", concat(tensor.value.layout()),
                      ", expected a dense tensor");
}

/// Whether the elements fill one run of memory, in any order of the dimensions.
inline bool is_one_run(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// Bytes of the tensor's elements.
inline std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * static_cast<std::size_t>(tensor.element_size());
}

/// Copies the root's values to all ranks, at once. All ranks give tensors of the same shapes and dtypes.
inline void broadcast_together(ddp::ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  std::vector<std::uint8_t> together(bytes);
  const auto copy_all = [&](bool out) {
    std::uint8_t* at = together.data();
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor piece = at::from_blob(at, tensor.sizes(), tensor.options().requires_grad(false));
      out ? at::Tensor(tensor).copy_(piece) : at::Tensor(piece).copy_(tensor);
      at += bytes_of(tensor);
    }
  };
  if (group.rank() == root) copy_all(false);
  group.broadcast(std::span(together), root).wait();
  if (group.rank() != root) copy_all(true);
}

}  // namespace duet::torch
