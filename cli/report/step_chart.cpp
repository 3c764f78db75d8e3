// The picture of one step, as it ran.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "cli/report/charts.h"
#include "cli/report/svg.h"
#include "cli/report/table.h"
#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

constexpr double kWidth = 760, kName = 150, kLane = 20, kPitch = 24, kGap = 16, kLegend = 44;

/// The most devices on which dp and ddp both ran, without sharing cores if possible.
int devices_to_draw(const Results& results) {
  int best = 0;
  bool best_shares = true;
  for (const Run& run : results.runs) {
    const Run* const other = find_run(results, "dp", run.devices);
    if (!run.ok || run.mode != "ddp" || run.median_step.empty() || !other || other->median_step.empty()) continue;
    const bool shares = oversubscribed(results, run);
    if (best > 0 && (shares != best_shares ? shares : run.devices < best)) continue;
    best = run.devices;
    best_shares = shares;
  }
  return best;
}

std::vector<const Run*> runs_to_draw(const Results& results) {
  std::vector<const Run*> runs;
  if (const Run* single = find_run(results, "single", 1); single && !single->median_step.empty())
    runs.push_back(single);
  const int devices = devices_to_draw(results);
  for (const char* mode : {"dp", "ddp"})
    if (devices > 0) runs.push_back(find_run(results, mode, devices));
  return runs;
}

bool communicates(const std::string& lane) { return lane.find(',') != std::string::npos; }

/// Rank by rank, device by device, each followed by its communication.
std::vector<std::string> lanes_of(const Run& run) {
  std::vector<std::string> lanes;
  for (const StepEvent& event : run.median_step)
    if (std::find(lanes.begin(), lanes.end(), event.lane) == lanes.end()) lanes.push_back(event.lane);
  const auto place = [](const std::string& lane) {
    const std::string device = lane.substr(0, lane.find(','));
    return std::tuple(device.size(), device, communicates(lane));  // "rank 10" behind "rank 9"
  };
  std::sort(lanes.begin(), lanes.end(),
            [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  return lanes;
}

/// The part of a step that an event's colour stands for; collectives are communication. What a graph replays counts as
/// update: the host only waits for it.
std::string part_of(const std::string& name) {
  if (name == "graph") return "update";
  for (const PartName& part : step_part_names())
    if (name == part.name) return name;
  return "communication";
}

}  // namespace

std::string step_chart(const Results& results) {
  const std::vector<const Run*> runs = runs_to_draw(results);
  double end = 0, lanes = 0;
  for (const Run* run : runs) {
    lanes += static_cast<double>(lanes_of(*run).size());
    for (const StepEvent& event : run->median_step) end = std::max(end, event.end_us);
  }
  if (end <= 0) return "";
  const double height = kLegend + lanes * kPitch + static_cast<double>(runs.size()) * kGap + 30;
  Svg svg(kWidth, height, "One step, as it ran");
  draw_legend(svg, kName, kWidth);
  const std::vector<double> marks = ticks(end, 6);
  const double scale = (kWidth - kName - 40) / marks.back();
  for (const double mark : marks) {
    svg.line(kName + mark * scale, kLegend - 6, kName + mark * scale, height - 26, "grid");
    svg.text(kName + mark * scale, height - 10, grouped(std::llround(mark)), "middle");
  }
  svg.text(kWidth, height - 10, "us", "end");
  double row = kLegend;
  for (const Run* run : runs) {
    for (const std::string& lane : lanes_of(*run)) {
      svg.text(kName - 8, row + 14, run->mode + ", " + (communicates(lane) ? "communication" : lane), "end");
      for (const StepEvent& event : run->median_step) {
        if (event.lane != lane) continue;
        const double us = event.end_us - event.begin_us;
        svg.rect(kName + event.begin_us * scale, row, std::max(0.5, us * scale), kLane, "part-" + part_of(event.name),
                 run->mode + ", " + lane + ": " + event.name + " " + grouped(std::llround(us)) + " us");
      }
      row += kPitch;
    }
    row += kGap;
  }
  return svg.str();
}

}  // namespace duet::cli
