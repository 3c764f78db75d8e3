// What the ranks of a process group measured of the collectives of a network, alone.
#pragma once

#include <string>
#include <vector>

#include "model/cost_model.h"
#include "model/fit.h"

namespace duet::cli {

/// Means over the ranks, each the median of calls after pauses in which the ranks compute, as in training.
struct CollectiveTimes {
  std::vector<GradientBucket> buckets{};  // as ddp sends them
  std::vector<double> parameter_bytes{};  // as averaging sends them
  std::vector<TimePoint> all_reduces{};
  TimePoint averaging{};  // of all parameters: each summed in memory of its rank, and divided
  TimePoint addition{};   // of so many bytes to as many in memory, by one device
  // All buckets sent while the devices compute for `backward_us`, each when it is ready: what that takes longer.
  // Before that the devices compute for `skipped_us` less than in a step.
  double backward_us = 0, skipped_us = 0, exposed_us = 0;
  double pass_us = 0;  // all of this once

  /// Of `backward_us`, when a bucket is ready.
  double ready_us(const GradientBucket& bucket) const;
};

/// JSON, and back. Reading throws DataError.
std::string to_json(const CollectiveTimes& times);
CollectiveTimes collective_times_from_json(const std::string& text);

}  // namespace duet::cli
