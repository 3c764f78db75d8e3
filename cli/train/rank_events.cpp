#include "cli/train/rank_events.h"

#include <nlohmann/json.hpp>

namespace duet::cli {

using Json = nlohmann::ordered_json;

std::string trace_text(std::span<const TraceEvent> events) {
  Json out = Json::array();
  for (const TraceEvent& event : events)
    out.push_back(
        {event.name, static_cast<int>(event.kind), event.device.str(), event.amount, event.begin_ns, event.end_ns});
  return out.dump();
}

std::vector<RankEvent> events_of(const std::string& text) {
  std::vector<RankEvent> events;
  for (const Json& item : Json::parse(text))
    events.push_back({item.at(0), static_cast<TraceEvent::Kind>(item.at(1).get<int>()), item.at(2), item.at(3),
                      item.at(4), item.at(5)});
  return events;
}

RankSteps steps_of(const std::vector<RankEvent>& events) {
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

}  // namespace duet::cli
