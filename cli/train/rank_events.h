// The traces of all ranks of a run, by steps.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/base/trace.h"

namespace duet::cli {

/// A TraceEvent that may be of another process.
struct RankEvent {
  std::string name;
  TraceEvent::Kind kind = TraceEvent::Kind::work;
  std::string device;
  std::int64_t amount = 0, begin_ns = 0, end_ns = 0;

  bool is_step() const { return kind == TraceEvent::Kind::step; }
  bool is_communication() const { return kind == TraceEvent::Kind::communication; }
};

/// The events of one process as text, to be sent to rank 0, and back.
std::string trace_text(std::span<const TraceEvent> events);
std::vector<RankEvent> events_of(const std::string& text);

/// A step of one rank.
struct RankStep {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::vector<RankEvent> events;  // that began in it, in the order of their begin
};
/// By their numbers, without the first of a run.
using RankSteps = std::map<std::int64_t, RankStep>;
RankSteps steps_of(const std::vector<RankEvent>& events);

}  // namespace duet::cli
