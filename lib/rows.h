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

  bool stamped() const { return global > 0; }
  bool operator==(const Rows&) const = default;
};

/// Block i of a batch of `global` rows is [block_begin(i, global), block_begin(i + 1, global)).
/// The same rule with `parts` in place of kBlocks gives each of `parts` devices its rows.
inline std::int64_t block_begin(std::int64_t i, std::int64_t global, std::int64_t parts = kBlocks) {
  return i * global / parts;
}

}  // namespace duet
