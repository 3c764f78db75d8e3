// The pictures of index.html.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/report/report.h"
#include "cli/report/svg.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr double kWidth = 760, kLeft = 70, kRight = 130, kTop = 30, kBottom = 46;
constexpr double kNames = 130, kBar = 20, kPitch = 28;  // of pictures with a row for each run

double low(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double high(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

/// Those runs that have not failed and fit.
template <class Fits>
std::vector<const Run*> runs_where(const Results& results, const Fits& fits) {
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (run.ok && fits(run)) runs.push_back(&run);
  return runs;
}

std::string row_label(const Results& results, const Run& run) {
  const std::string count = sharing(run).empty() ? std::to_string(run.devices) : sharing(run);
  return row_name(results, run) + (run.mode == "single" ? "" : " " + count);
}

/// A picture with a value axis on the left from 0 to at least `largest`.
struct Axes {
  Svg svg;
  double height, top = 1;
  Axes(const std::string& title, double picture_height, double largest, const std::string& unit)
      : svg(kWidth, picture_height, title), height(picture_height) {
    const std::vector<double> marks = ticks(largest, 5);
    top = marks.back();
    for (const double mark : marks) {
      svg.line(kLeft, y(mark), kWidth - kRight, y(mark), "grid");
      svg.text(kLeft - 8, y(mark) + 4, shortest(std::round(mark * 1e6) / 1e6), "end");
    }
    svg.text(kLeft - 8, kTop - 16, unit, "end");
  }
  double y(double value) const { return kTop + (height - kTop - kBottom) * (1 - value / top); }
  void mark_x(double x, const std::string& text) { svg.text(x, height - kBottom + 20, text, "middle"); }

  /// Name labels at the right ends of lines, moved apart where they would cover each other, and up where they would
  /// leave the picture.
  void end_labels(std::vector<std::pair<double, std::string>> labels) {
    constexpr double kPitchOfLabels = 15;
    std::sort(labels.begin(), labels.end());
    double lowest = height - kBottom;
    for (auto label = labels.rbegin(); label != labels.rend(); ++label, lowest -= kPitchOfLabels)
      label->first = std::min(label->first, lowest);
    double last = -100;
    for (const auto& [place, name] : labels) {
      last = std::max(place, last + kPitchOfLabels);
      svg.text(kWidth - kRight + 12, last + 4, name, "start", "label ink-" + name);
    }
  }
};

/// A picture of rows of bars over an axis in us, with the colours of a step's parts above it.
struct TimeBars {
  static constexpr double kLegend = 44;
  Svg svg;
  double left, scale = 1;
  TimeBars(const std::string& title, double rows, double names, double right, double longest, const std::string& unit)
      : svg(kWidth, kLegend + rows + 30, title), left(names) {
    double x = left, y = 12;
    for (const PartName& part : kStepParts) {
      const double size = 24 + 8.0 * static_cast<double>(std::strlen(part.name));
      if (x + size > kWidth) {
        x = left;
        y += 18;
      }
      svg.rect(x, y - 9, 11, 11, concat("part-", part.name), "");
      svg.text(x + 16, y + 1, part.name, "start");
      x += size;
    }
    const double height = kLegend + rows + 30;
    const std::vector<double> marks = ticks(longest, 6);
    scale = (kWidth - left - right) / marks.back();
    for (const double mark : marks) {
      svg.line(left + mark * scale, kLegend - 6, left + mark * scale, height - 26, "grid");
      svg.text(left + mark * scale, height - 10, grouped(std::llround(mark)), "middle");
    }
    svg.text(kWidth, height - 10, unit, "end");
  }
  void bar(double row, double begin_us, double end_us, const std::string& part, const std::string& what) {
    svg.rect(left + begin_us * scale, row, std::max(0.5, (end_us - begin_us) * scale), kBar, "part-" + part,
             concat(what, " ", grouped(std::llround(end_us - begin_us)), " us"));
  }
};

/// A row per run, in it a bar per process or device, in MB.
std::string memory_bars(const Results& results, std::vector<double> Run::*memory, const std::string& owner) {
  const auto runs = runs_where(results, [&](const Run& run) { return !(run.*memory).empty(); });
  double largest = 0;
  for (const Run* run : runs) largest = std::max(largest, high(run->*memory));
  if (largest <= 0) return "";
  Svg svg(kWidth, static_cast<double>(runs.size()) * kPitch + 8, "Peak memory of every " + owner);
  const double scale = (kWidth - kNames - 90) / largest;
  double row = 4;
  for (const Run* run : runs) {
    const std::vector<double>& mb = run->*memory;
    const std::string label = row_label(results, *run);
    svg.text(kNames - 8, row + 14, label, "end");
    const double bar = kBar / static_cast<double>(mb.size());
    for (std::size_t i = 0; i < mb.size(); ++i)
      svg.rect(kNames, row + static_cast<double>(i) * bar, mb[i] * scale, std::max(1.0, bar - 1), "fill-" + run->mode,
               concat(label, ", ", owner, " ", i, ": ", fixed(mb[i], 0), " MB"));
    svg.text(kNames + high(mb) * scale + 6, row + 14,
             concat(fixed(high(mb), 0), " MB", mb.size() > 1 ? concat(" x ", mb.size()) : ""), "start");
    row += kPitch;
  }
  return svg.str();
}

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
  const auto named = [&](const PartName& part) { return name == part.name; };
  return std::any_of(std::begin(kStepParts), std::end(kStepParts), named) ? name : "communication";
}

}  // namespace

std::string epoch_chart(const Results& results) {
  std::set<int> counts;
  double largest = 0;
  // Shared GPUs show what sharing costs; in a picture of scaling they would mislead.
  const auto fits = [&](const Run& run) {
    return !run.epoch_s.empty() && !all_cores_row(results, run) && sharing(run).empty();
  };
  for (const Run* run : runs_where(results, fits)) {
    counts.insert(run->devices);
    largest = std::max(largest, high(run->epoch_s));
  }
  if (largest <= 0) return "";
  Axes axes("Time of an epoch against devices", 360, largest, "seconds");
  const auto x = [&](int devices) {
    const auto at = static_cast<double>(std::distance(counts.begin(), counts.find(devices)));
    const double share = counts.size() < 2 ? 0.5 : at / static_cast<double>(counts.size() - 1);
    return kLeft + 30 + (kWidth - kRight - kLeft - 60) * share;
  };
  for (const int devices : counts) axes.mark_x(x(devices), concat(devices, devices == 1 ? " device" : " devices"));
  std::vector<std::pair<double, std::string>> labels;
  if (const Run* single = find_run(results, "single", 1); single && !single->epoch_s.empty()) {
    Points ideal;
    for (const int devices : counts) ideal.emplace_back(x(devices), axes.y(median(single->epoch_s) / devices));
    axes.svg.path(ideal, "curve ideal");
    labels.emplace_back(ideal.back().second, "ideal");
  }
  double shift = -4;
  for (const std::string mode : {"single", "averaging", "dp", "ddp"}) {
    Points points;
    for (const int devices : counts) {
      const Run* run = find_run(results, mode, devices);
      if (!run || !fits(*run)) continue;
      // A few pixels apart, so that the min..max bars of two modes do not cover each other.
      const double at = x(devices) + shift;
      points.emplace_back(at, axes.y(median(run->epoch_s)));
      axes.svg.line(at, axes.y(low(run->epoch_s)), at, axes.y(high(run->epoch_s)), "range stroke-" + mode);
      axes.svg.dot(at, points.back().second, "fill-" + mode,
                   concat(mode, " on ", devices, ": ", seconds(median(run->epoch_s)), " s (",
                          seconds(low(run->epoch_s)), "..", seconds(high(run->epoch_s)), ")"));
    }
    axes.svg.path(points, "curve stroke-" + mode);
    if (!points.empty() && mode == "single")
      axes.svg.text(points.back().first + 10, points.back().second - 8, mode, "start", "label ink-single");
    else if (!points.empty())
      labels.emplace_back(points.back().second, mode);
    shift += 4;
  }
  axes.end_labels(labels);
  return axes.svg.str();
}

std::string parts_chart(const Results& results) {
  const std::vector<const Run*> runs = runs_where(results, [](const Run&) { return true; });
  double largest = 0;
  for (const Run* run : runs) largest = std::max(largest, run->step_us.sum());
  if (largest <= 0) return "";
  TimeBars bars("Where a step's time goes", static_cast<double>(runs.size()) * kPitch, kNames, 80, largest,
                "us a step");
  double row = TimeBars::kLegend;
  for (const Run* run : runs) {
    const std::string label = row_label(results, *run);
    bars.svg.text(kNames - 8, row + 14, label, "end");
    double at = 0;
    for (const PartName& part : kStepParts) {
      const double us = run->step_us.*part.member;
      if (us > 0) bars.bar(row, at, at + us, part.name, concat(label, ": ", part.name));
      at += std::max(0.0, us);
    }
    bars.svg.text(kNames + at * bars.scale + 6, row + 14, grouped(std::llround(run->step_us.sum())), "start");
    row += kPitch;
  }
  return bars.svg.str();
}

std::string loss_chart(const Results& results) {
  const int epochs = results.settings.epochs;
  const std::vector<const Run*> runs = runs_where(results, [](const Run&) { return true; });
  double largest = 0;
  std::size_t most = 0;
  for (const Run* run : runs)
    for (const double loss : run->train_loss)
      if (std::isfinite(loss)) {
        largest = std::max(largest, loss);
        most = std::max(most, run->train_loss.size());
      }
  if (most < 2 || largest <= 0) return "";
  Axes axes("Training loss", 320, largest, "loss");
  const double room = kWidth - kRight - kLeft;
  for (int epoch = 0; epoch <= epochs; ++epoch)
    if (epochs <= 10 || epoch % (epochs / 5) == 0)
      axes.mark_x(kLeft + room * epoch / epochs, epoch == 0 ? "start" : concat("epoch ", epoch));
  std::vector<std::pair<double, std::string>> labels;
  std::set<std::string> labelled;
  for (const Run* run : runs) {
    Points points;
    const auto size = static_cast<double>(run->train_loss.size());
    for (std::size_t i = 0; i < run->train_loss.size(); ++i)
      if (std::isfinite(run->train_loss[i]))
        points.emplace_back(kLeft + room * (static_cast<double>(i) + 0.5) / size, axes.y(run->train_loss[i]));
    // Curves of runs with the same bits coincide: wider strokes below, so that all of them show.
    axes.svg.path(points, concat("curve over-", run->mode, " stroke-", run->mode));
    if (!points.empty() && labelled.insert(run->mode).second) labels.emplace_back(points.back().second, run->mode);
  }
  axes.end_labels(labels);
  return axes.svg.str();
}

std::string memory_chart(const Results& results) { return memory_bars(results, &Run::peak_memory_mb, "process"); }

std::string device_memory_chart(const Results& results) {
  return memory_bars(results, &Run::device_memory_mb, "device");
}

std::string step_chart(const Results& results) {
  constexpr double kNamesOfLanes = 150, kPitchOfLanes = 24, kGap = 16;
  const std::vector<const Run*> runs = runs_to_draw(results);
  double end = 0, rows = 0;
  for (const Run* run : runs) {
    rows += static_cast<double>(lanes_of(*run).size()) * kPitchOfLanes + kGap;
    for (const StepEvent& event : run->median_step) end = std::max(end, event.end_us);
  }
  if (end <= 0) return "";
  TimeBars bars("One step, as it ran", rows, kNamesOfLanes, 40, end, "us");
  double row = TimeBars::kLegend;
  for (const Run* run : runs) {
    for (const std::string& lane : lanes_of(*run)) {
      const std::string shown = communicates(lane) ? "communication" : lane;
      bars.svg.text(kNamesOfLanes - 8, row + 14, concat(run->mode, ", ", shown), "end");
      for (const StepEvent& event : run->median_step)
        if (event.lane == lane)
          bars.bar(row, event.begin_us, event.end_us, part_of(event.name),
                   concat(run->mode, ", ", lane, ": ", event.name));
      row += kPitchOfLanes;
    }
    row += kGap;
  }
  return bars.svg.str();
}

}  // namespace duet::cli
