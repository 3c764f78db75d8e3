// The trace of a run: of all ranks together, as a file for trace viewers and as the events of one step.
#pragma once

#include <string>
#include <vector>

#include "cli/train/rank_events.h"
#include "measure/run.h"

namespace duet::cli {

/// Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing read: a process per rank, a thread per
/// device and one for communication. `texts`: trace_text() of all ranks, in rank order. Times begin with the first
/// event.
std::string chrome_trace(const std::vector<std::string>& texts);

/// The events of the step whose time on rank 0 is the median of all but the first step, on all ranks; empty for a run
/// of one step. Where the ranks' times are of one clock, with stretches named kWaiting within the blocks of those that
/// wait for the last rank or replica.
std::vector<StepEvent> median_step(const std::vector<RankSteps>& ranks, bool one_clock);

}  // namespace duet::cli
