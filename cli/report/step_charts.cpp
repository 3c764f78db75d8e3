// Where the time of a step goes: as means, and as one step ran.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cli/report/bar_charts.h"
#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

/// Of the picture of one step: single, and dp and ddp on the most devices on which both ran, without sharing cores if
/// possible.
std::vector<const Run*> runs_to_draw(const Results& results) {
  const auto traced = [&](const char* mode, int devices) {
    const Run* const run = find_run(results, mode, devices);
    return run && !run->median_step.empty() ? run : nullptr;
  };
  int best = 0;
  bool best_shares = true;
  for (const Run& run : results.runs) {
    if (!run.ok || run.mode != "ddp" || run.median_step.empty() || !traced("dp", run.devices)) continue;
    const bool shares = oversubscribed(results, run);
    if (best > 0 && (shares != best_shares ? shares : run.devices < best)) continue;
    best = run.devices;
    best_shares = shares;
  }
  std::vector<const Run*> runs;
  if (const Run* const single = traced("single", 1)) runs.push_back(single);
  if (best > 0) runs.insert(runs.end(), {find_run(results, "dp", best), find_run(results, "ddp", best)});
  return runs;
}

bool communicates(const std::string& lane) { return lane.find(',') != std::string::npos; }

/// Rank by rank, device by device, each followed by its communication.
std::vector<std::string> lanes_of(const Run& run) {
  std::set<std::tuple<std::size_t, std::string, bool, std::string>> lanes;
  for (const StepEvent& event : run.median_step) {
    const std::string device = event.lane.substr(0, event.lane.find(','));
    lanes.emplace(device.size(), device, communicates(event.lane), event.lane);  // "rank 10" behind "rank 9"
  }
  std::vector<std::string> names;
  for (const auto& lane : lanes) names.push_back(std::get<3>(lane));
  return names;
}

std::string lane_label(const Run& run, const std::string& lane) {
  return concat(run.mode, ", ", communicates(lane) ? "communication" : lane);
}

/// The part of a step that an event's colour stands for; collectives are communication. What a graph replays counts as
/// update: the host only waits for it.
std::string part_of(const std::string& name) {
  if (name == "graph") return "update";
  if (name == kWaiting) return name;
  const auto named = [&](const PartName& part) { return name == part.name; };
  return std::any_of(std::begin(kStepParts), std::end(kStepParts), named) ? name : "communication";
}

}  // namespace

std::string parts_chart(const Results& results) {
  std::vector<const Run*> runs;
  std::vector<std::string> labels, sums;
  double largest = 0;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    runs.push_back(&run);
    labels.push_back(row_label(results, run));
    sums.push_back(grouped(std::llround(run.step_us.sum())));
    largest = std::max(largest, run.step_us.sum());
  }
  if (largest <= 0) return "";
  TimeBars bars("Where a step's time goes", static_cast<double>(runs.size()) * kPitch,
                std::max(130.0, room_for(labels)), room_for(sums), largest, "us a step");
  double row = bars.first_row();
  for (std::size_t i = 0; i < runs.size(); ++i, row += kPitch) {
    const Run& run = *runs[i];
    bars.name(row, labels[i]);
    const StepParts waiting = waiting_of(run);
    double at = 0;
    const auto add = [&](double us, const std::string& part, const std::string& what) {
      if (us > 0) bars.bar(row, at, at + us, part, concat(labels[i], ": ", what));
      at += std::max(0.0, us);
    };
    for (const PartName& part : kStepParts) {
      add(run.step_us.*part.member - waiting.*part.member, part.name, part.name);
      add(waiting.*part.member, kWaiting, waiting_text(run));
    }
    bars.svg.text(bars.x(at) + 6, row + 14, sums[i], "start", "label value");
  }
  return bars.svg.str();
}

std::string step_chart(const Results& results) {
  constexpr double kPitchOfLanes = 24, kGap = 16;
  const std::vector<const Run*> runs = runs_to_draw(results);
  double end = 0, rows = 0;
  std::vector<std::string> labels;
  for (const Run* run : runs) {
    for (const std::string& lane : lanes_of(*run)) labels.push_back(lane_label(*run, lane));
    rows += static_cast<double>(lanes_of(*run).size()) * kPitchOfLanes + kGap;
    for (const StepEvent& event : run->median_step) end = std::max(end, event.end_us);
  }
  if (end <= 0) return "";
  TimeBars bars("One step, as it ran", rows, std::max(150.0, room_for(labels)), 40, end, "us");
  double row = bars.first_row();
  for (const Run* run : runs) {
    for (const std::string& lane : lanes_of(*run)) {
      bars.name(row, lane_label(*run, lane));
      for (const StepEvent& event : run->median_step)
        if (event.lane == lane)
          bars.bar(row, event.begin_us, event.end_us, part_of(event.name),
                   concat(run->mode, ", ", lane, ": ", event.name == kWaiting ? waiting_text(*run) : event.name));
      row += kPitchOfLanes;
    }
    row += kGap;
  }
  return bars.svg.str();
}

}  // namespace duet::cli
