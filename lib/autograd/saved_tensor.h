// Tensors that a backward reads, which must be those that its forward has read or made.
#pragma once

#include <cstdint>

#include "lib/autograd/variable.h"
#include "lib/tensor.h"

namespace duet {

/// A tensor as it was when an operator kept it for its backward (torch/csrc/autograd/saved_variable.h).
class SavedTensor : public Tensor {
 public:
  SavedTensor() = default;
  /// `what` it is to the operator, for errors: "labels". It must outlive this.
  SavedTensor(const Tensor& tensor, const char* what);
  /// An argument of which the operator's node has the edge. Undefined: an undefined tensor.
  SavedTensor(const Variable& x, const char* what);

  /// Throws UsageError that names operator and tensor if elements were written since. That is known by
  /// Tensor::version(), and on CPUs, where code may have written elements through their address, by a hash of up to 16
  /// of them, evenly spread.
  void require_unmodified(const char* op) const;

 private:
  [[noreturn]] void refuse(const char* op) const;
  std::uint64_t hash_of_some() const;

  const char* what_ = nullptr;
  const Node* from_ = nullptr;  // held by the operator's node
  std::uint64_t version_ = 0, hash_ = 0;
};

}  // namespace duet
