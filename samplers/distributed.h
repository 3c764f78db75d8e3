// PyTorch's way of sharing a data set between ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/data/loader.h"

namespace duet::samplers {

struct DistributedOptions {
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;  // cut the end off so that all ranks get the same number; else the head is repeated
};

/// torch.utils.data.DistributedSampler: every world_size-th index of randperm(n) with the seed `seed + epoch`, or of
/// 0..n-1 without `shuffle`; the same number on every rank. Throws UsageError for a rank outside [0, world_size) and
/// for n < 0.
class DistributedSampler : public data::Sampler {
 public:
  DistributedSampler(std::int64_t n, const DistributedOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  void set_epoch(std::int64_t epoch) override;
  std::span<const std::int64_t> indices() const override { return indices_; }
  data::OrderPart part() const override { return {options_.rank, options_.world_size, hash_}; }

 private:
  DistributedOptions options_;
  std::vector<std::int64_t> all_;      // the order of the whole set
  std::vector<std::int64_t> indices_;  // this rank's
  std::uint64_t hash_ = 0;             // hash of all_
};

}  // namespace duet::samplers
