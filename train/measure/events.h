// The traces of all ranks of a run: by steps, as a file, and what of a step is waiting for the last rank or replica.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/base/trace.h"
#include "train/measure/run.h"

namespace duet::cli {

/// A TraceEvent that may be of another process; never one that a device timed.
struct RankEvent {
  std::string name;
  TraceEvent::Kind kind = TraceEvent::Kind::work;
  std::string device;
  std::int64_t amount = 0, begin_ns = 0, end_ns = 0;

  bool is_step() const { return kind == TraceEvent::Kind::step; }
  bool is_communication() const { return kind == TraceEvent::Kind::communication; }
};
using RankEvents = std::vector<RankEvent>;

/// Name of the event of a step that was replayed with others, of which only all together were timed.
inline constexpr const char* kReplayed = "graph";

/// Adds the times of the parts of steps on `lane` to `parts`: of an event its time without that of the events within
/// it. A replayed step counts as update. `events` in the order of Trace::read().
void add_parts(std::span<const TraceEvent> events, Device lane, StepParts& parts);

/// The events of one rank as text, to be sent to rank 0, and back.
std::string trace_text(std::span<const TraceEvent> events);
RankEvents events_of(const std::string& text);

/// Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing read: a process per rank, a thread per
/// device and one for communication. Times begin with the first event.
std::string chrome_trace(const std::vector<RankEvents>& ranks);

struct RankStep {
  std::int64_t begin_ns = 0, end_ns = 0;
  RankEvents events;  // that began in it, in the order of their begin
};
/// By their numbers, without the first of a run.
using RankSteps = std::map<std::int64_t, RankStep>;
RankSteps steps_of(const RankEvents& events);

/// The events of the step whose time on rank 0 is the median of all but the first step, on all ranks; empty for a run
/// of one step. Where the ranks' times are of one clock, with stretches named kWaiting within the blocks of those that
/// wait for the last rank or replica.
std::vector<StepEvent> median_step(const std::vector<RankSteps>& ranks, bool one_clock);

/// Fills the run's fields on waiting and moving from the traces of all ranks, whose times must be of one clock: means
/// over the steps that all of them traced. Leaves them null where a trace holds no collective, or no second replica.
void fill_waiting(Run& run, const std::vector<RankSteps>& ranks);

}  // namespace duet::cli
