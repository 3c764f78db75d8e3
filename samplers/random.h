// Every index once, in random order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/data/loader.h"
#include "lib/random.h"

namespace duet::samplers {

/// PyTorch's randperm, drawn for each epoch.
class RandomSampler : public data::Sampler {
 public:
  /// Epoch e is randperm(n) of the seed `seed + e`: the whole that DistributedSampler divides, so that one process and
  /// many see the same order. Throws UsageError unless n > 0.
  RandomSampler(std::int64_t n, std::uint64_t seed);
  /// torch.utils.data.RandomSampler: set_epoch takes an int64 from `generator`, which must outlive the sampler, and
  /// permutes with that seed. The number of the epoch does not matter. Until the first set_epoch there is no order.
  RandomSampler(std::int64_t n, Mt19937& generator);

  std::int64_t size() const override { return n_; }
  void set_epoch(std::int64_t epoch) override;
  std::span<const std::int64_t> indices() const override { return indices_; }

 private:
  std::int64_t n_;
  std::uint64_t seed_ = 0;
  Mt19937* generator_ = nullptr;
  std::vector<std::int64_t> indices_;
};

}  // namespace duet::samplers
