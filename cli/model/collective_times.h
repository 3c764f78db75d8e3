// What the ranks of a process group measured of the collectives of a network, alone.
#pragma once

#include <string>
#include <vector>

#include "cli/model/cost_model.h"
#include "cli/model/fit.h"

namespace duet::cli {

struct CollectiveTimes {
  std::vector<GradientBucket> buckets{};  // as ddp sends them
  std::vector<double> parameter_bytes{};  // as averaging sends them
  std::vector<TimePoint> all_reduces{};   // medians of calls, each from the begin of the last rank on
  TimePoint averaging{};                  // of all parameters: each summed in memory of its rank, and divided
  TimePoint addition{};                   // of so many bytes to as many in memory, by one device
};

/// JSON, and back. Reading throws DataError.
std::string to_json(const CollectiveTimes& times);
CollectiveTimes collective_times_from_json(const std::string& text);

}  // namespace duet::cli
