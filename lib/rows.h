// The stamp of a batch: which rows of which global batch a tensor holds.
#pragma once

#include <cstdint>

namespace duet {

/// Number of blocks into which every global batch is divided for sums over samples.
inline constexpr int kBlocks = 8;

/// Rows [first, first + n) of the global batch number `step`, which has `global` rows in all, where n is the tensor's
/// own first dimension. The loader stamps each batch, scatter and row slices narrow the stamp, operators pass it on:
/// so that dropout uses the rows' numbers and sums over samples their blocks, on any device.
struct Rows {
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t global = 0;  // 0: not stamped; the tensor is its own global batch
  int shards = 1;           // ranks among which a sampler divided the global batch
  /// Hash of the order of samples from which the batch was cut, and of the data set, for comparison between ranks; 0:
  /// unknown. Where shards is 1, one rank's part of an order, which no other rank has. Equality leaves it out.
  std::uint64_t order = 0;
  /// Differs from that of every other batch that loaders of this process have delivered; 0: of no loader. It is no part
  /// of where the rows lie: equality leaves it out.
  std::uint64_t delivery = 0;

  bool stamped() const { return global > 0; }
  bool operator==(const Rows& other) const {
    return step == other.step && first == other.first && global == other.global && shards == other.shards;
  }
};

/// Block i of a batch of `global` rows is [block_begin(i, global), block_begin(i + 1, global)).
/// The same rule with `parts` in place of kBlocks gives each of `parts` devices its rows.
inline std::int64_t block_begin(std::int64_t i, std::int64_t global, std::int64_t parts = kBlocks) {
  return i * global / parts;
}

}  // namespace duet
