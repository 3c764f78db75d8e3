// Memory of duet's tensors as tensors of LibTorch.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/tensor.h"
#include "torch/device_order.h"

namespace duet::torch {

/// The bytes of a tensor of duet's from `begin` on as a plain tensor of LibTorch, which keeps the memory.
inline at::Tensor torch_view(const Tensor& tensor, at::ScalarType type, at::IntArrayRef sizes, std::size_t begin = 0) {
  const c10::Device device = torch_device(tensor.device());
  return at::for_blob(static_cast<std::byte*>(tensor.raw()) + begin, sizes)
      .deleter([tensor](void*) {})
      .options(at::TensorOptions(type).device(device))
      .target_device(device)
      .make_tensor();
}

/// Rows [begin, end) of dimension 0 of f32 or i64.
inline at::Tensor rows_view(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> sizes(tensor.shape().begin(), tensor.shape().end());
  sizes.at(0) = end - begin;
  const std::int64_t row = tensor.shape().count_from(1) * static_cast<std::int64_t>(size_of(tensor.dtype()));
  return torch_view(tensor, tensor.dtype() == DType::i64 ? at::kLong : at::kFloat, sizes,
                    static_cast<std::size_t>(begin * row));
}

}  // namespace duet::torch
