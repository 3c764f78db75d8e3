// The trace of a run: of all ranks together, as a file for trace viewers and as the events of one step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/report/results.h"
#include "lib/base/trace.h"

namespace duet::cli {

/// The events of one process as text, to be sent to rank 0.
std::string trace_text(std::span<const TraceEvent> events);

/// Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing read: a process per rank, a thread per
/// device and one for communication. `texts`: trace_text() of all ranks, in rank order. Times begin with the first
/// event.
std::string chrome_trace(const std::vector<std::string>& texts);

/// The events of the step whose time on rank 0 is the median of all but the first step, on all ranks; empty for a run
/// of one step.
std::vector<StepEvent> median_step(const std::vector<std::string>& texts);

}  // namespace duet::cli
