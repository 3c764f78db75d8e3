// The pictures of index.html, each a whole <svg>; empty text where there is nothing to draw.
#pragma once

#include <string>

#include "cli/report/results.h"
#include "cli/report/svg.h"

namespace duet::cli {

/// Time of an epoch against devices: a line per mode, bars from min to max, the ideal line dashed.
std::string epoch_chart(const Results& results);
/// Where a step's time goes: a stacked bar per run.
std::string parts_chart(const Results& results);
/// One step, as it ran: a lane for every device and rank, of single, and of dp above ddp on as many devices as both
/// have.
std::string step_chart(const Results& results);
/// The colours of a step's parts, in rows between `left` and `right` at the top of a picture: 44 high.
void draw_legend(Svg& svg, double left, double right);
/// Loss of all runs over training.
std::string loss_chart(const Results& results);
/// Peak memory: a bar per process.
std::string memory_chart(const Results& results);
/// Peak memory on GPUs: a bar per device; empty for CPU.
std::string device_memory_chart(const Results& results);

}  // namespace duet::cli
