// What duet bench measures of one collective, as its ranks measure it and its reports show it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "train/options/options.h"

namespace duet::cli {

/// One size. Bandwidths as nccl-tests define them (its doc/PERFORMANCE.md).
struct CollectiveRow {
  std::string backend, algorithm;
  int ranks = 1;
  std::int64_t bytes = 0, count = 0;  // size of the longer of a rank's buffers, in bytes and elements
  double time_us = 0;                 // time of one call, the mean over calls and ranks
  // Times of the shortest and the longest call, each a mean over ranks; not measured on GPUs, which run calls
  // asynchronously.
  std::optional<double> min_us{}, max_us{};
  double algorithm_gb_s = 0, bus_gb_s = 0;
  std::optional<std::int64_t> wrong{};  // elements on all ranks, where they were checked
};

/// Bus bandwidth over algorithm bandwidth: the share of a rank's bytes that must cross its link.
double bus_factor(const std::string& collective, int ranks);

/// Measures all sizes as one rank of `group`, with buffers on `device`, and gives each row to `take`, on rank 0.
void measure_collective(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group,
                        Device device, const std::function<void(const CollectiveRow&)>& take);

std::string row_json(const CollectiveRow& row);
/// Throws DataError.
CollectiveRow parse_row(const std::string& json);
std::string rows_json(const CollectiveOptions& options, const std::vector<CollectiveRow>& rows);

}  // namespace duet::cli
