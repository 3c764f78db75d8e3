// Gradients of LibTorch's parameters in one piece of memory, in the order in which buckets are sent.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/reducer.h"
#include "lib/tensor.h"
#include "torch/tensors.h"

namespace duet::torch {

/// Where each parameter's gradient lies: in the order given, one dtype after the other, each at a multiple of 64 bytes.
class GradientLayout {
 public:
  /// Throws UsageError that names a parameter whose gradients cannot be summed.
  explicit GradientLayout(std::vector<NamedTensorRef> parameters) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (NamedTensorRef& parameter : parameters) {
        if (!parameter.value.defined()) continue;  // moved
        if (dtype_of(parameter) != dtype) continue;
        offsets_.push_back(bytes_);
        bytes_ += aligned_bytes_of(parameter.value);
        parameters_.push_back(std::move(parameter));
      }
    }
  }

  const std::vector<NamedTensorRef>& parameters() const { return parameters_; }
  std::size_t bytes() const { return bytes_; }
  /// The device of the first parameter.
  at::Device device() const { return parameters_.at(0).value.device(); }
  std::size_t offset(std::size_t i) const { return offsets_[i]; }
  /// Bytes of parameter i's gradient and the padding behind it.
  std::size_t bytes(std::size_t i) const { return (i + 1 < offsets_.size() ? offsets_[i + 1] : bytes_) - offsets_[i]; }

 private:
  std::vector<NamedTensorRef> parameters_;
  std::vector<std::size_t> offsets_;  // in bytes
  std::size_t bytes_ = 0;
};

/// Memory of that layout, zeroed, with a tensor for each parameter's gradient that has the strides of the value where
/// these fill one run of memory. The tensors share the memory and keep it alive.
class FlatGradients {
 public:
  /// `memory`: bytes on the parameters' device.
  FlatGradients(const GradientLayout& layout, const at::Tensor& memory) {
    memory.zero_();
    const auto keep = std::make_shared<at::Tensor>(memory);
    // Not views of one tensor: Optimizer::zero_grad() calls detach_(), which throws for views.
    for (std::size_t i = 0; i < layout.parameters().size(); ++i)
      tensors_.push_back(
          tensor_over(memory.data_ptr<std::uint8_t>() + layout.offset(i), layout.parameters()[i].value, keep));
  }

  const at::Tensor& operator[](std::size_t i) const { return tensors_[i]; }

  /// Whether a tensor is that gradient.
  bool holds(std::size_t i, const at::Tensor& gradient) const {
    return gradient.defined() && gradient.data_ptr() == tensors_[i].data_ptr();
  }

  /// Adds the other one's elements, padding aside.
  void add(const FlatGradients& other) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) at::Tensor(tensors_[i]).add_(other.tensors_[i]);
  }

  /// For a Reducer.
  std::vector<ddp::ReducerSlot> slots(const GradientLayout& layout) const {
    std::vector<ddp::ReducerSlot> list;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const NamedTensorRef& parameter = layout.parameters()[i];
      const auto room = static_cast<std::int64_t>(layout.bytes(i)) / parameter.value.element_size();
      list.push_back({.data = tensors_[i].data_ptr(),
                      .count = parameter.value.numel(),
                      .dtype = dtype_of(parameter),
                      .device = device_of(tensors_[i].device()),
                      .name = parameter.name,
                      .padding = room - parameter.value.numel()});
    }
    return list;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

/// Memory for gradients, not initialised: that in which the group sums without copies, where it has such, else
/// LibTorch's, whose allocator orders a later use of it after that of the stream on which it was allocated; the
/// wrappers order duet's work before that.
inline at::Tensor gradient_memory(const GradientLayout& layout, ddp::ProcessGroup* group = nullptr) {
  const auto options = at::TensorOptions(at::kByte).device(layout.device());
  const auto bytes = static_cast<std::int64_t>(layout.bytes());
  const std::shared_ptr<Storage> shared =
      group != nullptr && layout.device().is_cpu() ? group->shared_storage(layout.bytes()) : nullptr;
  return shared ? at::from_blob(
                      shared->data(), {bytes}, [shared](void*) {}, options)
                : at::empty({bytes}, options);
}

}  // namespace duet::torch
