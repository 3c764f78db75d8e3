// Where the time of a step goes: as means, and as one step ran.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "report/interval_text.h"
#include "report/page/chart.h"
#include "report/report.h"

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

/// The part of a step that an event's colour stands for; collectives are communication. What a graph replays counts as
/// update: the host only waits for it.
std::string part_of(const std::string& name) {
  if (name == "graph") return "update";
  if (name == kWaiting) return name;
  const auto named = [&](const PartName& part) { return name == part.name; };
  return std::any_of(std::begin(kStepParts), std::end(kStepParts), named) ? name : "communication";
}

std::string waiting_text(const Run& run) {
  return run.mode == "dp" ? "waiting for the last replica" : "waiting for the last rank";
}

std::string us_text(double us) { return grouped(std::llround(us)) + " us"; }

/// What of an event no later event of its lane covers: blocks within it are drawn in its place.
std::vector<std::pair<double, double>> bare_stretches(const std::vector<StepEvent>& events, std::size_t at) {
  std::vector<std::pair<double, double>> bare = {{events[at].begin_us, events[at].end_us}};
  for (std::size_t later = at + 1; later < events.size(); ++later) {
    const StepEvent& inner = events[later];
    if (inner.lane != events[at].lane) continue;
    std::vector<std::pair<double, double>> left;
    for (const auto& [begin, end] : bare) {
      if (begin < std::min(end, inner.begin_us)) left.emplace_back(begin, std::min(end, inner.begin_us));
      if (std::max(begin, inner.end_us) < end) left.emplace_back(std::max(begin, inner.end_us), end);
    }
    bare = left;
  }
  return bare;
}

}  // namespace

std::string row_label(const Results& results, const Run& run) {
  const std::string count = sharing(run).empty() ? std::to_string(run.devices) : sharing(run);
  return row_name(results, run) + (run.mode == "single" ? "" : " " + count);
}

Chart parts_chart(const Results& results) {
  Chart chart{.id = "parts", .title = "Where a step's time goes", .unit = "us a step"};
  for (const Run& run : results.runs) {
    if (!run.ok || run.step_us.sum() <= 0) continue;
    const auto row = static_cast<double>(chart.rows.size());
    chart.rows.push_back(row_label(results, run));
    const StepParts waiting = waiting_of(run);
    double at = 0;
    const auto add = [&](double us, const std::string& part, const std::string& what) {
      if (us <= 0) return;
      chart.series_of(part, part, "bar")
          .points.push_back(
              {row, us, at, at + us,
               concat(chart.rows.back(), ": ", what, " ", us_text(us), " of ", us_text(run.step_us.sum()))});
      at += us;
    };
    for (const PartName& part : kStepParts) {
      add(run.step_us.*part.member - waiting.*part.member, part.name, part.name);
      add(waiting.*part.member, kWaiting, waiting_text(run));
    }
  }
  return chart;
}

Chart step_chart(const Results& results) {
  Chart chart{.id = "step", .title = "One step, as it ran", .unit = "us"};
  for (const Run* run : runs_to_draw(results))
    for (const std::string& lane : lanes_of(*run)) {
      const auto row = static_cast<double>(chart.rows.size());
      chart.rows.push_back(concat(run->mode, ", ", lane));
      for (std::size_t i = 0; i < run->median_step.size(); ++i) {
        const StepEvent& event = run->median_step[i];
        if (event.lane != lane) continue;
        const std::string tip =
            concat(chart.rows.back(), ": ", event.name == kWaiting ? waiting_text(*run) : event.name, " ",
                   us_text(event.end_us - event.begin_us));
        const std::string part = part_of(event.name);
        for (const auto& [begin, end] : bare_stretches(run->median_step, i))
          chart.series_of(part, part, "bar").points.push_back({row, end - begin, begin, end, tip});
      }
    }
  return chart;
}

}  // namespace duet::cli
