#include "train/measure/events.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"

namespace duet::cli {
namespace {

constexpr PartName kForward{"forward", &StepParts::forward}, kBackward{"backward", &StepParts::backward},
    kCommunication{"communication", &StepParts::communication};

constexpr std::size_t kMostNested = 8;

/// Null: none.
double StepParts::*part_of(const TraceEvent& event) {
  const std::string_view name(event.name);
  if (name == kReplayed) return &StepParts::update;
  for (const PartName& part : kStepParts)
    if (name == part.name) return part.member;
  return nullptr;
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

Json name_of(const char* what, int process, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

/// The number of the step that took the median time, or -1.
std::int64_t median_number(const RankSteps& steps) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;  // and numbers
  for (const auto& [number, step] : steps) times.emplace_back(step.end_ns - step.begin_ns, number);
  std::sort(times.begin(), times.end());
  return times.empty() ? -1 : times[times.size() / 2].second;
}

/// The step of that number of all ranks; empty where the ring of one has lost it.
std::vector<const RankStep*> step_of_all(const std::vector<RankSteps>& ranks, std::int64_t number) {
  std::vector<const RankStep*> steps;
  for (const RankSteps& rank : ranks) {
    const auto found = rank.find(number);
    if (found == rank.end()) return {};
    steps.push_back(&found->second);
  }
  return steps;
}

/// A stretch of a lane of the trace in which a rank or replica waits for the last one.
struct Waiting {
  std::string device;
  double StepParts::*part = nullptr;  // where computing waits; null: in the lane of collectives
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Waiting in one step: a list for each rank, or one list for all replicas.
using WaitingOfRanks = std::vector<std::vector<Waiting>>;

std::vector<const RankEvent*> collectives_of(const RankStep& step) {
  std::vector<const RankEvent*> found;
  for (const RankEvent& event : step.events)
    if (event.is_communication()) found.push_back(&event);
  return found;
}

/// What of [begin, end) lies where computing of `step` stands still.
void add_exposed(const RankStep& step, std::int64_t begin, std::int64_t end, std::vector<Waiting>& out) {
  for (const RankEvent& event : step.events) {
    if (event.is_communication() || event.name != kCommunication.name) continue;
    const std::int64_t from = std::max(begin, event.begin_ns), to = std::min(end, event.end_ns);
    if (from < to) out.push_back({event.device, kCommunication.member, from, to});
  }
}

/// The n-th collective of a rank waits from its begin to the begin of the same collective on the rank that comes last:
/// before that no rank can have its result. Computing waits where it stands still for such a collective. Empty where
/// ranks have traced different collectives.
WaitingOfRanks waiting_of_ranks(const std::vector<const RankStep*>& steps) {
  const auto collectives = of_each(steps, [](const RankStep* step) { return collectives_of(*step); });
  const auto same = [](const RankEvent* a, const RankEvent* b) { return a->name == b->name; };
  for (const auto& rank : collectives)
    if (!std::equal(rank.begin(), rank.end(), collectives[0].begin(), collectives[0].end(), same)) return {};
  WaitingOfRanks waiting(steps.size());
  for (std::size_t n = 0; n < collectives[0].size(); ++n) {
    std::int64_t last = 0;
    for (const auto& rank : collectives) last = std::max(last, rank[n]->begin_ns);
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      const RankEvent& own = *collectives[rank][n];
      const std::int64_t end = std::min(last, own.end_ns);
      if (end <= own.begin_ns) continue;
      waiting[rank].push_back({own.device, nullptr, own.begin_ns, end});
      add_exposed(*steps[rank], own.begin_ns, end, waiting[rank]);
    }
  }
  return waiting;
}

/// Replicas that have ended forward or backward wait for the last one.
WaitingOfRanks waiting_of_replicas(const RankStep& step) {
  WaitingOfRanks waiting(1);
  for (const PartName& part : {kForward, kBackward}) {
    // The first device also has an event of that name around them all, which begins before its own.
    std::map<std::string, std::int64_t> ends;
    for (const RankEvent& event : step.events)
      if (!event.is_communication() && event.name == part.name) ends[event.device] = event.end_ns;
    std::int64_t last = 0;
    for (const auto& [device, end] : ends) last = std::max(last, end);
    for (const auto& [device, end] : ends)
      if (end < last) waiting[0].push_back({device, part.member, end, last});
  }
  return waiting;
}

WaitingOfRanks waiting_in(const std::vector<const RankStep*>& steps) {
  return steps.size() == 1 ? waiting_of_replicas(*steps[0]) : waiting_of_ranks(steps);
}

/// Sums over steps of what the fields of a run hold.
struct Sums {
  std::vector<double> waiting, moving;  // one entry a step, means over ranks or replicas
  StepParts exposed;                    // waiting of computing, likewise
  // Waiting of each rank or replica, by the size of its name, so that "cpu:10" is behind "cpu:9", and its name.
  std::map<std::pair<std::size_t, std::string>, double> lanes;
};

bool moves(const RankEvent& event, bool of_ranks) {
  if (of_ranks) return event.is_communication();
  const auto named = [&](const char* name) { return event.name == name; };
  return named("scatter") || named("replicate") || named("gather") || named(kCommunication.name);
}

/// One step of all ranks, or of the one process of so many replicas.
void add_step(const std::vector<const RankStep*>& steps, int devices, Sums& sums) {
  const WaitingOfRanks waiting = waiting_in(steps);
  if (waiting.empty()) return;
  const bool of_ranks = steps.size() > 1;
  double waited = 0, moved = 0;
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    const auto lane = [&](const std::string& device) -> double& {
      const std::string name = of_ranks ? std::to_string(rank) : device;
      return sums.lanes[{name.size(), name}];
    };
    for (const RankEvent& event : steps[rank]->events) {
      if (of_ranks ? event.is_communication() : event.name == kForward.name) lane(event.device);
      if (moves(event, of_ranks)) moved += us(event.end_ns - event.begin_ns);
    }
    for (const Waiting& stretch : waiting[rank]) {
      const double length = us(stretch.end_ns - stretch.begin_ns);
      if (stretch.part) sums.exposed.*stretch.part += length / devices;
      if (stretch.part && of_ranks) continue;  // the lane of collectives has it, too
      waited += length;
      lane(stretch.device) += length;
    }
  }
  sums.waiting.push_back(waited / devices);
  sums.moving.push_back(of_ranks ? (moved - waited) / devices : moved);
}

std::vector<double> interval_around(double value, const std::vector<double>& of_steps) {
  const std::optional<double> half = half_interval(of_steps);
  return half ? std::vector<double>{value - *half, value + *half} : std::vector<double>();
}

}  // namespace

void add_parts(std::span<const TraceEvent> events, Device lane, StepParts& parts) {
  struct Open {
    double StepParts::*part;
    std::int64_t end_ns;
  };
  std::array<Open, kMostNested> open{};  // the events around the next, the outermost first
  std::size_t depth = 0;
  for (const TraceEvent& event : events) {
    double StepParts::*const part = part_of(event);
    if (event.kind != TraceEvent::Kind::work || event.device != lane || part == nullptr) continue;
    while (depth > 0 && open[depth - 1].end_ns <= event.begin_ns) --depth;
    parts.*part += event.us();
    if (depth > 0) parts.*open[depth - 1].part -= event.us();
    if (depth < kMostNested) open[depth++] = {part, event.end_ns};
  }
}

std::string trace_text(std::span<const TraceEvent> events) {
  Json out = Json::array();
  for (const TraceEvent& event : events) {
    if (event.kind == TraceEvent::Kind::device_communication) continue;
    out.push_back(
        {event.name, static_cast<int>(event.kind), event.device.str(), event.amount, event.begin_ns, event.end_ns});
  }
  return out.dump();
}

RankEvents events_of(const std::string& text) {
  RankEvents events;
  for (const Json& item : Json::parse(text))
    events.push_back({item.at(0), static_cast<TraceEvent::Kind>(item.at(1).get<int>()), item.at(2), item.at(3),
                      item.at(4), item.at(5)});
  return events;
}

std::string chrome_trace(const std::vector<RankEvents>& ranks) {
  std::int64_t origin = INT64_MAX;
  for (const RankEvents& events : ranks)
    for (const RankEvent& event : events) origin = std::min(origin, event.begin_ns);
  Json out = Json::array();
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    std::map<std::string, int> threads;
    out.push_back(name_of("process_name", rank, 0, "rank " + std::to_string(rank)));
    for (const RankEvent& event : ranks[static_cast<std::size_t>(rank)]) {
      const std::string lane = event.is_communication() ? "communication" : event.device;
      const auto [thread, fresh] = threads.emplace(lane, static_cast<int>(threads.size()));
      if (fresh) out.push_back(name_of("thread_name", rank, thread->second, lane));
      Json item = {{"name", event.is_step() ? "step " + std::to_string(event.amount) : event.name},
                   {"ph", "X"},
                   {"pid", rank},
                   {"tid", thread->second},
                   {"ts", us(event.begin_ns - origin)},
                   {"dur", us(event.end_ns - event.begin_ns)}};
      if (event.is_communication()) item["args"] = {{"bytes", event.amount}};
      out.push_back(item);
    }
  }
  return Json{{"traceEvents", out}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

RankSteps steps_of(const RankEvents& events) {
  RankSteps steps;
  for (const RankEvent& event : events)
    if (event.is_step() && event.amount > 0) steps[event.amount] = {event.begin_ns, event.end_ns, {}};
  auto step = steps.begin();
  for (const RankEvent& event : events) {
    while (step != steps.end() && step->second.end_ns <= event.begin_ns) ++step;
    if (step == steps.end()) break;
    if (!event.is_step() && event.begin_ns >= step->second.begin_ns) step->second.events.push_back(event);
  }
  return steps;
}

std::vector<StepEvent> median_step(const std::vector<RankSteps>& ranks, bool one_clock) {
  if (ranks.empty()) return {};
  const std::vector<const RankStep*> steps = step_of_all(ranks, median_number(ranks[0]));
  std::int64_t origin = INT64_MAX;
  for (const RankStep* step : steps) origin = std::min(origin, step->begin_ns);
  const WaitingOfRanks waiting = one_clock && !steps.empty() ? waiting_in(steps) : WaitingOfRanks();
  std::vector<StepEvent> found;
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    const auto add = [&](const std::string& name, const std::string& device, bool communicates, auto begin, auto end) {
      const std::string lane = steps.size() > 1 ? "rank " + std::to_string(rank) : device;
      found.push_back({lane + (communicates ? ", communication" : ""), name, us(begin - origin), us(end - origin)});
    };
    for (const RankEvent& event : steps[rank]->events)
      add(event.name, event.device, event.is_communication(), event.begin_ns, event.end_ns);
    if (waiting.empty()) continue;
    for (const Waiting& stretch : waiting[rank])
      add(kWaiting, stretch.device, !stretch.part, stretch.begin_ns, stretch.end_ns);
  }
  return found;
}

void fill_waiting(Run& run, const std::vector<RankSteps>& ranks) {
  if (ranks.empty() || run.devices < 2) return;
  Sums sums;
  for (const auto& [number, first] : ranks[0])
    if (const auto steps = step_of_all(ranks, number); !steps.empty()) add_step(steps, run.devices, sums);
  if (sums.lanes.size() < 2) return;  // neither a collective nor a second replica
  const auto steps = static_cast<double>(sums.waiting.size());
  run.communication_waiting_us = mean(sums.waiting);
  // Among ranks, moving is the rest, so that both add up to what the process groups measured.
  run.communication_moving_us = run.communication_us;
  if (ranks.size() > 1)
    run.communication_moving_us = std::max(0.0, run.communication_us - *run.communication_waiting_us);
  run.waiting_interval_us = interval_around(*run.communication_waiting_us, sums.waiting);
  run.moving_interval_us = interval_around(*run.communication_moving_us, sums.moving);
  StepParts& waiting = run.step_waiting_us.emplace();
  for (const PartName& part : kStepParts)
    waiting.*part.member = std::min(sums.exposed.*part.member / steps, run.step_us.*part.member);
  for (const auto& [lane, sum] : sums.lanes) run.rank_waiting_us.push_back(sum / steps);
}

}  // namespace duet::cli
