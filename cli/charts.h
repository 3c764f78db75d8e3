// The pictures of index.html, each a whole <svg>; empty text where there is nothing to draw.
#pragma once

#include <string>

#include "cli/results.h"

namespace duet::cli {

/// Time of an epoch against devices: a line per mode, bars from min to max, the ideal line dashed.
std::string epoch_chart(const Results& results);
/// Where a step's time goes: a stacked bar per run.
std::string parts_chart(const Results& results);
/// Loss of all runs over training.
std::string loss_chart(const Results& results);
/// Peak memory: a bar per process.
std::string memory_chart(const Results& results);

}  // namespace duet::cli
