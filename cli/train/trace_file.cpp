#include "cli/train/trace_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A TraceEvent that another process wrote.
struct Event {
  std::string name;
  TraceEvent::Kind kind = TraceEvent::Kind::work;
  std::string device;
  std::int64_t amount = 0, begin_ns = 0, end_ns = 0;

  bool is_step() const { return kind == TraceEvent::Kind::step; }
  bool is_communication() const { return kind == TraceEvent::Kind::communication; }
};

/// By ranks.
std::vector<std::vector<Event>> all_events(const std::vector<std::string>& texts) {
  std::vector<std::vector<Event>> ranks(texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    for (const Json& item : Json::parse(texts[rank]))
      ranks[rank].push_back({item.at(0), static_cast<TraceEvent::Kind>(item.at(1).get<int>()), item.at(2), item.at(3),
                             item.at(4), item.at(5)});
  return ranks;
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

Json name_of(const char* what, int process, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

/// The number of the step that took the median time, or -1.
std::int64_t median_number(const std::vector<Event>& events) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // time, number
  for (const Event& event : events)
    if (event.is_step() && event.amount > 0) steps.emplace_back(event.end_ns - event.begin_ns, event.amount);
  if (steps.empty()) return -1;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return middle->second;
}

}  // namespace

std::string trace_text(std::span<const TraceEvent> events) {
  Json out = Json::array();
  for (const TraceEvent& event : events)
    out.push_back(
        {event.name, static_cast<int>(event.kind), event.device.str(), event.amount, event.begin_ns, event.end_ns});
  return out.dump();
}

std::string chrome_trace(const std::vector<std::string>& texts) {
  const auto ranks = all_events(texts);
  std::int64_t origin = INT64_MAX;
  for (const auto& events : ranks)
    for (const Event& event : events) origin = std::min(origin, event.begin_ns);
  Json out = Json::array();
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    std::map<std::string, int> threads;
    out.push_back(name_of("process_name", rank, 0, "rank " + std::to_string(rank)));
    for (const Event& event : ranks[static_cast<std::size_t>(rank)]) {
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

std::vector<StepEvent> median_step(const std::vector<std::string>& texts) {
  const auto ranks = all_events(texts);
  const std::int64_t number = ranks.empty() ? -1 : median_number(ranks[0]);
  if (number < 0) return {};
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;  // of the step, on every rank
  for (const auto& events : ranks) {
    const auto step = std::find_if(events.begin(), events.end(),
                                   [&](const Event& event) { return event.is_step() && event.amount == number; });
    if (step == events.end()) return {};  // another rank's ring has lost it
    spans.emplace_back(step->begin_ns, step->end_ns);
  }
  const std::int64_t origin = std::min_element(spans.begin(), spans.end())->first;
  std::vector<StepEvent> found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Event& event : ranks[rank]) {
      if (event.is_step() || event.begin_ns < spans[rank].first || event.begin_ns >= spans[rank].second) continue;
      std::string lane = ranks.size() > 1 ? "rank " + std::to_string(rank) : event.device;
      if (event.is_communication()) lane += ", communication";
      found.push_back({std::move(lane), event.name, us(event.begin_ns - origin), us(event.end_ns - origin)});
    }
  }
  return found;
}

}  // namespace duet::cli
