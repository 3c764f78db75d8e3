#include "ddp/group/tree_parts.h"

#include <algorithm>

namespace duet::ddp {

void TreeOrder::set(int ranks, int blocks) {
  if (ranks == ranks_ && blocks == blocks_) return;
  ranks_ = ranks;
  blocks_ = blocks;
  most_ = 1;
  first_ = {0};
  additions_.clear();
  std::vector<Subtree> all;
  for (int rank = 0; rank < ranks; ++rank) {
    if (blocks > 0)
      for (const Subtree& subtree : subtrees_of(rank, ranks, blocks)) all.push_back(subtree);
    first_.push_back(blocks > 0 ? static_cast<int>(all.size()) : rank + 1);
    most_ = std::max(most_, parts_of(rank));
  }
  const Subtree whole{0, blocks};
  if (blocks > 0) additions_ = additions_of(all, {&whole, 1});
}

}  // namespace duet::ddp
