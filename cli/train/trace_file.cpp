#include "cli/train/trace_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/train/waiting.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

Json name_of(const char* what, int process, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

/// The number of the step that took the median time, or -1.
std::int64_t median_number(const RankSteps& steps) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;  // and numbers
  for (const auto& [number, step] : steps) times.emplace_back(step.end_ns - step.begin_ns, number);
  if (times.empty()) return -1;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return middle->second;
}

}  // namespace

std::string chrome_trace(const std::vector<std::string>& texts) {
  std::vector<std::vector<RankEvent>> ranks;
  for (const std::string& text : texts) ranks.push_back(events_of(text));
  std::int64_t origin = INT64_MAX;
  for (const auto& events : ranks)
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

std::vector<StepEvent> median_step(const std::vector<RankSteps>& ranks, bool one_clock) {
  const std::int64_t number = ranks.empty() ? -1 : median_number(ranks[0]);
  std::vector<const RankStep*> steps;
  for (const RankSteps& rank : ranks) {
    const auto step = rank.find(number);
    if (step == rank.end()) return {};  // the ring of that rank has lost it
    steps.push_back(&step->second);
  }
  std::int64_t origin = INT64_MAX;
  for (const RankStep* step : steps) origin = std::min(origin, step->begin_ns);
  const auto waiting = one_clock ? waiting_in(steps) : std::vector<std::vector<Waiting>>();
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
      add(kWaiting, stretch.device, stretch.in_communication, stretch.begin_ns, stretch.end_ns);
  }
  return found;
}

}  // namespace duet::cli
