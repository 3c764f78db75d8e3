// Tensors as the buffers of a duet group's operations.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "lib/tensor.h"
#include "torch/c10d/work.h"
#include "torch/tensors.h"

namespace duet::torch {

/// What becomes of a buffer's elements.
enum class Elements : std::uint8_t { moved, reduced };

/// The call of the backend that is being made. Buffers are contiguous: tensors that are not are copied, and results
/// copied back when the operations have ended. Throws UsageError for a tensor that is sparse or not in the host's
/// memory, and for one that cannot be reduced.
class C10dCall {
 public:
  /// `tensor` is read.
  ddp::Buffer in(const at::Tensor& tensor, Elements elements = Elements::moved) {
    return hold(is_plain(tensor) ? tensor : at::empty(tensor.sizes(), tensor.options()).copy_(tensor), elements);
  }
  /// `tensor` is read and written, or written only.
  ddp::Buffer in_place(const at::Tensor& tensor, Elements elements = Elements::moved) {
    const ddp::Buffer buffer = in(tensor, elements);
    copy_back(parts_.held.back(), tensor);
    return buffer;
  }

  /// Tensors of one size in a row, which are read.
  ddp::Buffer in_row(const std::vector<at::Tensor>& tensors, Elements elements = Elements::moved) {
    const at::Tensor row = row_of(tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) piece(row, i).copy_(tensors[i].reshape(-1));
    return hold(row, elements);
  }
  /// Tensors of one size in a row, which are written.
  ddp::Buffer out_row(const std::vector<at::Tensor>& tensors) {
    const at::Tensor row = row_of(tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) copy_back(piece(row, i).view(tensors[i].sizes()), tensors[i]);
    return hold(row, Elements::moved);
  }

  /// `operation` is started when the calls before it allow that.
  void add(C10dWork::Operation operation) { parts_.operations.push_back(std::move(operation)); }
  C10dWork::Parts& parts() { return parts_; }

 private:
  static bool is_plain(const at::Tensor& tensor) {
    require<UsageError>(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                        "expected dense tensors in the host's memory, got ", tensor.layout(), " on ",
                        tensor.device().str());
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  }

  ddp::Buffer hold(const at::Tensor& tensor, Elements elements) {
    const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
    require<UsageError>(dtype.has_value() || elements == Elements::moved, "cannot reduce ", tensor.scalar_type(),
                        ": duet reduces Float, Double, Half, BFloat16, Int, Long and Byte");
    parts_.held.push_back(tensor);
    const std::int64_t count = tensor.numel() * (dtype ? 1 : static_cast<std::int64_t>(tensor.element_size()));
    return {tensor.data_ptr(), count, dtype.value_or(DType::u8)};
  }

  void copy_back(const at::Tensor& from, const at::Tensor& to) {
    parts_.results.push_back(to);
    if (from.is_same(to)) return;
    parts_.copies.emplace_back([from, to] {
      const at::NoGradGuard no_grad;
      to.copy_(from);
    });
  }

  static at::Tensor row_of(const std::vector<at::Tensor>& tensors) {
    require<UsageError>(!tensors.empty(), "expected a tensor for each rank, got none");
    const at::Tensor& first = tensors.front();
    for (const at::Tensor& tensor : tensors) {
      is_plain(tensor);
      require<UsageError>(tensor.numel() == first.numel() && tensor.scalar_type() == first.scalar_type(),
                          "expected tensors of one size and dtype, got ", first.sizes(), " ", first.scalar_type(),
                          " and ", tensor.sizes(), " ", tensor.scalar_type());
    }
    return at::empty({static_cast<std::int64_t>(tensors.size()), first.numel()}, first.options());
  }
  static at::Tensor piece(const at::Tensor& row, std::size_t index) { return row[static_cast<std::int64_t>(index)]; }

  C10dWork::Parts parts_;
};

}  // namespace duet::torch
