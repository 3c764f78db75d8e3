// What the backend's calls ask of their arguments.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"

namespace duet::torch {

/// Throws UsageError for what duet's groups have not.
inline ddp::ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ddp::ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ddp::ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ddp::ReduceOp::product;
    case c10d::ReduceOp::MIN: return ddp::ReduceOp::min;
    case c10d::ReduceOp::MAX: return ddp::ReduceOp::max;
    case c10d::ReduceOp::BAND: throw UsageError("duet has no ReduceOp BAND");
    case c10d::ReduceOp::BOR: throw UsageError("duet has no ReduceOp BOR");
    case c10d::ReduceOp::BXOR: throw UsageError("duet has no ReduceOp BXOR");
    case c10d::ReduceOp::PREMUL_SUM: throw UsageError("duet has no ReduceOp PREMUL_SUM");
    case c10d::ReduceOp::UNUSED: break;
  }
  throw UsageError(concat("duet has no ReduceOp ", static_cast<int>(op.op_)));
}

inline ddp::Buffer empty_like(const ddp::Buffer& buffer) { return {nullptr, 0, buffer.dtype}; }

/// Throws UsageError.
template <class Lefts, class Rights>
void same_length(const Lefts& lefts, const Rights& rights) {
  require<UsageError>(lefts.size() == rights.size(), "got ", lefts.size(), " tensors or lists, expected ",
                      rights.size());
}
/// Throws UsageError.
inline void same_dtype(const at::Tensor& output, const at::Tensor& input) {
  require<UsageError>(output.scalar_type() == input.scalar_type(), "the output is ", output.scalar_type(),
                      ", the input ", input.scalar_type());
}

/// Whether this rank is the root, which alone has a list. Throws UsageError.
inline bool at_root(const std::vector<std::vector<at::Tensor>>& lists, int root, int rank) {
  require<UsageError>(lists.size() == (rank == root ? 1U : 0U), "got ", lists.size(), " lists on rank ", rank,
                      ", expected one on the root only, rank ", root);
  return rank == root;
}

/// `count` pieces along the first dimension; of equal size where no sizes are given. Throws c10::ValueError.
inline std::vector<at::Tensor> pieces_of(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes, int count) {
  const bool fits =
      sizes.empty() ? tensor.dim() > 0 && tensor.size(0) % count == 0 : sizes.size() == static_cast<std::size_t>(count);
  if (!fits)
    C10_THROW_ERROR(ValueError, concat("duet:all_to_all: ", tensor.sizes(), " is not split into ", count, " by ",
                                       sizes.size(), " sizes"));
  return sizes.empty() ? tensor.split(tensor.size(0) / count) : tensor.split_with_sizes(sizes);
}

}  // namespace duet::torch
