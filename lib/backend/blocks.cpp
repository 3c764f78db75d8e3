#include "lib/backend/blocks.h"

#include <algorithm>

#include "lib/error.h"

namespace duet {
namespace {

/// Adds the leaves of blocks [low, high) pairwise; returns the leaf that holds their sum, or -1 if none is present.
int add_subtree(Blocks& blocks, const std::array<int, kBlocks>& leaf_of_block, int low, int high) {
  if (high - low == 1) return leaf_of_block[static_cast<std::size_t>(low)];
  const int middle = (low + high) / 2;
  const int left = add_subtree(blocks, leaf_of_block, low, middle);
  const int right = add_subtree(blocks, leaf_of_block, middle, high);
  if (left < 0 || right < 0) return left < 0 ? right : left;
  const auto at = 2 * static_cast<std::size_t>(blocks.addition_count++);
  blocks.additions[at] = left;
  blocks.additions[at + 1] = right;
  return left;
}

}  // namespace

void require_rows_of_batch(const Rows& stamp, std::int64_t rows) {
  require<UsageError>(!stamp.stamped() || (stamp.first >= 0 && stamp.first + rows <= stamp.global), "a tensor of ",
                      rows, " rows has the stamp of rows from ", stamp.first, " on of a batch of ", stamp.global,
                      ", so sums over the batch would leave some out: a batch that was augmented or concatenated is "
                      "one of its own, set_stamp({})");
}

Blocks blocks_of(const Rows& stamp, std::int64_t rows) {
  Blocks blocks;
  const std::int64_t global = stamp.stamped() ? stamp.global : rows;
  const std::int64_t first = stamp.stamped() ? stamp.first : 0;
  require_rows_of_batch(stamp, rows);
  std::array<int, kBlocks> leaf_of_block{};
  for (int i = 0; i < kBlocks; ++i) {
    const std::int64_t begin = std::max(block_begin(i, global), first);
    const std::int64_t end = std::min(block_begin(i + 1, global), first + rows);
    leaf_of_block[static_cast<std::size_t>(i)] = begin < end ? blocks.leaf_count : -1;
    if (begin >= end) continue;
    const auto at = 2 * static_cast<std::size_t>(blocks.leaf_count++);
    blocks.ranges[at] = begin - first;
    blocks.ranges[at + 1] = end - first;
  }
  if (blocks.leaf_count == 0) blocks.leaf_count = 1;
  add_subtree(blocks, leaf_of_block, 0, kBlocks);
  blocks.add_zero = global < kBlocks;
  return blocks;
}

}  // namespace duet
