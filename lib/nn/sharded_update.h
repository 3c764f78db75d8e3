// An optimizer's update that ranks divide among themselves.
//
// Note [Sharded update]: ranks that share memory need not all update the whole model. Each sums a shard of the
// gradients and updates its values; then all have all new values, with the bits of an update by every rank. What an
// optimizer keeps from step to step lies in memory that all ranks have in common, and is whole between two steps. So
// backward ends with gradients that are this rank's alone, and whoever asks the store for them gets an error.
#pragma once

#include <cstdint>

#include "lib/base/thread_pool.h"
#include "lib/tensor.h"

namespace duet::nn {

/// What a wrapper offers to the optimizers of a store. Used by the store's thread; all ranks make the same calls.
class ShardedUpdate {
 public:
  /// Updates values from flat element `begin` on; `sums` are the sums of their gradients.
  using Update = FunctionRef<void(std::int64_t begin, const Tensor& sums)>;

  virtual ~ShardedUpdate() = default;
  /// Zeros laid out as the store's flat buffers, the same memory for all ranks. In an update each rank writes there
  /// what it updates; between two updates all may read all of it.
  virtual Tensor common_zeros() = 0;
  /// One update: calls `update` for the elements of this rank's shard, and returns when the store holds all new values.
  /// Other ranks write them in between. `rule` stands for the update's settings: all ranks must have the same. Throws
  /// UsageError unless a backward that synchronises the ranks has ended since zero_grad() and since the last update.
  virtual void run(std::uint32_t rule, Update update) = 0;
};

}  // namespace duet::nn
