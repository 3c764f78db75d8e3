// The blocks of a batch and the tree that sums them: see Note [Sums over samples] in backend.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/tensor.h"

namespace duet {

/// The part of one tensor's rows that lies in each block of its global batch, and the additions that sum the blocks.
struct Blocks {
  struct Range {
    std::int64_t begin, end;  // rows of the tensor
    std::int64_t rows() const { return end - begin; }
  };
  struct Addition {
    int destination, source;  // leaf `source` is added to leaf `destination`
  };
  Range leaf(int i) const {
    const auto at = 2 * static_cast<std::size_t>(i);
    return {ranges[at], ranges[at + 1]};
  }
  Addition addition(int i) const {
    const auto at = 2 * static_cast<std::size_t>(i);
    return {additions[at], additions[at + 1]};
  }

  std::array<std::int64_t, 2 * kBlocks> ranges{};  // of each leaf
  int leaf_count = 0;
  std::array<int, 2 * (kBlocks - 1)> additions{};  // in order; the sum ends up in leaf 0
  int addition_count = 0;
  /// Some block of the global batch is empty. Then every sum gets +0 added, which turns -0 into +0: the same wherever
  /// the empty blocks are.
  bool add_zero = false;
};

/// The sum of the leaves' parts by the tree.
template <class T>
T sum_by_tree(const Blocks& blocks, std::array<T, kBlocks> part) {
  for (int i = 0; i < blocks.addition_count; ++i) {
    const auto [to, from] = blocks.addition(i);
    part[static_cast<std::size_t>(to)] += part[static_cast<std::size_t>(from)];
  }
  return part[0];
}

/// Throws UsageError for a tensor of more rows than its stamp's batch has from `first` on.
void require_rows_of_batch(const Rows& stamp, std::int64_t rows);
/// Blocks of a tensor of `rows` rows with this stamp. A tensor without rows has one empty leaf. Throws as
/// require_rows_of_batch().
Blocks blocks_of(const Rows& stamp, std::int64_t rows);
inline Blocks blocks_of(const Tensor& batch) { return blocks_of(batch.stamp_or_self(), batch.size(0)); }

}  // namespace duet
