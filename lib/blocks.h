// Blocks of a global batch: the tree by which their sums are added up, and which of them a worker owns.
//
// Note [Sums over samples]: a sum over the rows of a batch is the sum inside each of the blocks of the global batch,
// then the fixed binary tree over these, for 8 blocks ((0+1)+(2+3))+((4+5)+(6+7)). For that, the result for a row must
// not depend on its neighbours, so kernels run block by block, as the batch's stamp says.
//
// Note [Owners]: of W workers (devices of all ranks) number w owns blocks floor(w B / W) to floor((w + 1) B / W), whole
// ones, while W <= B. What it owns is one or several maximal aligned parts of the tree (Subtree); it publishes a sum
// for each of them, and the reduction joins these by the tree. So any number of workers up to B ends with the same
// bits. Where W divides B every worker has one subtree. More workers than blocks share out rows: sums agree to
// rounding.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/pool.h"

namespace duet {

/// Numbers of blocks that a global batch may be divided into: powers of two up to kMostBlocks, kBlocks unless said.
inline constexpr int kBlocks = 8, kMostBlocks = 32;

/// Whether a batch can be divided into so many blocks: 8, 16 or 32.
inline constexpr bool is_block_count(std::int64_t blocks) {
  return blocks >= kBlocks && blocks <= kMostBlocks && std::has_single_bit(static_cast<std::uint64_t>(blocks));
}

/// Blocks that serve any of these numbers of workers: kBlocks where each divides that, else kMostBlocks, which divides
/// work among them more evenly.
inline constexpr int blocks_for(std::span<const int> workers) {
  for (const int count : workers)
    if (count < 1 || kBlocks % count != 0) return kMostBlocks;
  return kBlocks;
}
inline constexpr int blocks_for(int workers) { return blocks_for(std::span(&workers, 1)); }

/// Part i of `parts` equal parts of `global` rows is [block_begin(i, global, parts), block_begin(i + 1, global,
/// parts)).
inline std::int64_t block_begin(std::int64_t i, std::int64_t global, std::int64_t parts) { return i * global / parts; }

/// The first row of worker number `worker` of `workers` in a batch of `global` rows: see Note [Owners].
inline std::int64_t share_begin(std::int64_t worker, std::int64_t workers, std::int64_t global, int blocks) {
  return workers <= blocks ? block_begin(worker * blocks / workers, global, blocks)
                           : block_begin(worker, global, workers);
}

/// Blocks [first, first + blocks) of a tree, of which it is a branch: `blocks` is a power of two that divides `first`.
struct Subtree {
  int first = 0, blocks = 0;
  int end() const { return first + blocks; }
  bool operator==(const Subtree&) const = default;
};

/// Most subtrees of a worker that owns less than all blocks.
inline constexpr int kMostSubtrees = 8;

/// The maximal subtrees of blocks [begin, end), in order.
PooledVector<Subtree> subtrees_of(int begin, int end);
/// Those of worker number `worker` of `workers`, at most as many as blocks.
inline PooledVector<Subtree> subtrees_of(int worker, int workers, int blocks) {
  return subtrees_of(worker * blocks / workers, (worker + 1) * blocks / workers);
}

/// Leaf or part number `source` is added to number `destination`.
struct Addition {
  int destination = 0, source = 0;
  bool operator==(const Addition&) const = default;
};

/// Adds up blocks [low, high) by the tree: part(low, high) is the number of the part that holds their sum, or negative;
/// add(destination, source) adds one to another. Returns the number of the part that holds the sum; negative where all
/// are missing, which count nothing.
template <class Part, class Add>
int add_by_tree(int low, int high, const Part& part, const Add& add) {
  const int known = part(low, high);
  if (known >= 0 || high - low == 1) return known;
  const int middle = (low + high) / 2;
  const int left = add_by_tree(low, middle, part, add);
  const int right = add_by_tree(middle, high, part, add);
  if (left < 0 || right < 0) return left < 0 ? right : left;
  add(left, right);
  return left;
}

/// The additions, in order, after which the first of the parts that lie in a target holds the target's sum, for every
/// target. Parts and targets are in order, and each part lies in a target.
std::vector<Addition> additions_of(std::span<const Subtree> parts, std::span<const Subtree> targets);
/// The same for `count` parts that are no subtrees: by the tree where that is a power of two, else from the first to
/// the last.
std::vector<Addition> additions_of(int count);

}  // namespace duet
