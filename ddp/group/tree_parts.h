// Ranks that own several subtrees of the blocks of a batch: see Note [Owners] in lib/blocks.h.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "lib/blocks.h"

namespace duet::ddp {

/// What a rank gives to an all-reduce beside the buffer of the call, which holds the partial sum of its first subtree.
struct TreeParts {
  int blocks = 0;  // in all, the same on all ranks, no fewer than these; 0: each rank has one part
  std::array<void*, kMostSubtrees - 1> more{};  // partial sums of its further subtrees, each as long as the buffer
};

/// All parts of the ranks of a group, in order, and how they are added up.
class TreeOrder {
 public:
  /// The order for so many blocks; 0: one part of each rank.
  void set(int ranks, int blocks);
  int parts() const { return first_.back(); }
  /// The number of a rank's first part among all.
  int first(int rank) const { return first_[static_cast<std::size_t>(rank)]; }
  int parts_of(int rank) const { return first(rank + 1) - first(rank); }
  int most_parts() const { return most_; }
  /// The additions of the tree; empty where reduce_parts() has its own order.
  const std::vector<Addition>& additions() const { return additions_; }

 private:
  int ranks_ = 0, blocks_ = -1, most_ = 1;
  std::vector<int> first_;  // by rank, and their sum
  std::vector<Addition> additions_;
};

}  // namespace duet::ddp
