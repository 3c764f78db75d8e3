// Orders of indices, cut into steps.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/data/sampler.h"

namespace duet::samplers {

struct BatchOptions {
  std::int64_t batch_size = 1;  // rows that this rank reads in a step
  bool drop_last = false;       // leave the last batch out if it is not full
  int world_size = 1;           // ranks that step together, each with an order of the same size
  int rank = 0;
};

/// torch.utils.data.BatchSampler: consecutive runs of one rank's own order. The global batch is the ranks' batches one
/// after the other. Throws UsageError for a batch size below 1 and for a rank outside [0, world_size).
class Batches : public data::BatchSampler {
 public:
  Batches(std::unique_ptr<data::Sampler> order, const BatchOptions& options);
  std::int64_t steps() const override;
  void set_epoch(std::int64_t epoch) override { order_->set_epoch(epoch); }
  data::StepIndices step(std::int64_t step) const override;

 private:
  std::unique_ptr<data::Sampler> order_;
  BatchOptions options_;
};

struct BlockedOptions {
  std::int64_t global_batch = 1;  // rows that all ranks together read in a step
  bool drop_last = false;         // leave the last global batch out if it is not full
  int world_size = 1;
  int rank = 0;
};

/// Every rank holds the order of the *whole* set, and reads rows floor(rank N / W) to floor((rank + 1) N / W) of every
/// global batch of N rows: one process and any number of ranks walk the same global batches, and every row is read
/// once. A rank's part of a small batch may be empty. Throws as Batches.
class BlockedBatches : public data::BatchSampler {
 public:
  BlockedBatches(std::unique_ptr<data::Sampler> whole_order, const BlockedOptions& options);
  std::int64_t steps() const override;
  void set_epoch(std::int64_t epoch) override { order_->set_epoch(epoch); }
  data::StepIndices step(std::int64_t step) const override;

 private:
  std::unique_ptr<data::Sampler> order_;
  BlockedOptions options_;
};

}  // namespace duet::samplers
