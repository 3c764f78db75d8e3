// 0, 1, 2, ...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/data/loader.h"

namespace duet::samplers {

/// All indices in their own order, the same in every epoch.
class SequentialSampler : public data::Sampler {
 public:
  /// Throws UsageError for n < 0.
  explicit SequentialSampler(std::int64_t n);
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  void set_epoch(std::int64_t) override {}
  std::span<const std::int64_t> indices() const override { return indices_; }

 private:
  std::vector<std::int64_t> indices_;
};

}  // namespace duet::samplers
