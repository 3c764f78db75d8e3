// Orders of indices, cut into steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "lib/data/loader.h"

namespace duet::samplers {

struct BatchOptions {
  std::int64_t batch_size = 1;  // rows that this rank reads in a step
  bool drop_last = false;       // leave the last batch out if it is not full
  int world_size = 1;           // ranks that step together, each with an order of the same size
  int rank = 0;
};

/// Consecutive runs of an order. Throws UsageError for a batch size below 1 and for a rank outside [0, world_size).
/// set_epoch() throws it for an order of another size than at first.
class StepSampler : public data::BatchSampler {
 public:
  std::int64_t steps() const override;
  void set_epoch(std::int64_t epoch) override;

 protected:
  /// `shares`: all ranks have the same order, else each one its own.
  StepSampler(std::unique_ptr<data::Sampler> order, const BatchOptions& options, bool shares);
  /// The indices of batch number `step`.
  std::span<const std::int64_t> cut(std::int64_t step) const;
  void set_ranks(int rank, int world_size);
  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  /// The `order` of a batch's stamp.
  std::uint64_t order_hash() const { return order_hash_; }
  data::OrderPart part() const { return order_->part(); }

 private:
  void hash_order();

  std::unique_ptr<data::Sampler> order_;
  std::int64_t size_;
  BatchOptions options_;
  bool shares_;
  std::uint64_t order_hash_ = 0;
};

/// torch.utils.data.BatchSampler: consecutive runs of one rank's own order. The global batch is the ranks' batches one
/// after the other.
class Batches : public StepSampler {
 public:
  /// Throws UsageError for the part of another rank than options.rank of an order that ranks share out.
  Batches(std::unique_ptr<data::Sampler> order, const BatchOptions& options);
  data::StepIndices step(std::int64_t step) const override;
};

struct BlockedOptions {
  std::int64_t global_batch = 1;  // rows that all ranks together read in a step
  bool drop_last = false;         // leave the last global batch out if it is not full
  int world_size = 1;
  int rank = 0;
  /// Blocks of a global batch, 8, 16 or 32: runs that are to end with the same bits have the same number. With more of
  /// them 3, 5, 6 or 7 ranks share the work more evenly, and more than 8 end with the same bits, too.
  int blocks = kBlocks;
  /// Ranks have whole blocks, so that any number of them ends with the same bits; else as many rows each as possible,
  /// for devices whose sums have no order, GPUs. The same on all ranks.
  bool whole_blocks = true;
};

/// Every rank holds the order of the *whole* set, and reads its share of every global batch of N rows: the blocks that
/// it owns (lib/blocks.h, Note [Owners]), or rows floor(rank N / W) to floor((rank + 1) N / W) where there are more
/// ranks than blocks. One process and any number of ranks walk the same global batches, and every row is read once. A
/// rank's part of a small batch may be empty. Throws UsageError for another number of blocks.
class BlockedBatches : public StepSampler {
 public:
  BlockedBatches(std::unique_ptr<data::Sampler> whole_order, const BlockedOptions& options);
  data::StepIndices step(std::int64_t step) const override;
  bool set_part(int rank, int ranks) override;
  int blocks() const { return blocks_; }
  /// Not while a pass runs. Throws UsageError unless it is 8, 16 or 32.
  void set_blocks(int blocks);

 private:
  bool owned() const { return whole_blocks_ && world_size() <= blocks_; }

  int blocks_ = kBlocks;
  bool whole_blocks_;
};

}  // namespace duet::samplers
