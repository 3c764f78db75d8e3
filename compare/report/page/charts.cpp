// The pictures of a comparison, with what stands under them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

/// A median, from the least to the greatest.
Interval range_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {median(values), *low, *high};
}

std::string mode_colour(const Run& run) { return run.is_torch() ? "torch" : run.mode; }

/// ", where 4 devices share 2 cores", or nothing.
std::string shared_cores(const Results& results, const Run& run) {
  if (!run.on_cpu() || !oversubscribed(results, run)) return "";
  return ", where " + shared_cores_text(run.devices, results.machine.cores, run.threads_per_device);
}

/// The runs of a mode that have times, by devices; the usual ones where several have as many.
std::map<int, const Run*> timed_runs(const Results& results, const std::string& mode) {
  std::map<int, const Run*> runs;
  for (const Run& run : results.runs)
    if (run.ok && run.mode == mode && !run.epoch_s.empty() && sharing(run).empty()) runs.emplace(run.devices, &run);
  return runs;
}

/// Whether a run's speed-up is a result: on one device the wrappers run single's own code, and single is 1 by
/// definition.
bool is_result(const Results& results, const Run& run) {
  if (!run.ok || !run.speedup || run.mode == "copies") return false;
  return run.devices > 1 || all_cores_row(results, run);
}

std::string epoch_caption(const Results& results) {
  std::string text = "The picture that tutorials on data-parallel training draw: the median of a run's epochs.";
  if (!timed_runs(results, "single").empty() &&
      any_run(results, [](const Run& run) { return run.devices > 1 && !run.epoch_s.empty(); }))
    text += " The dashed grey line is single's time divided by the number of devices.";
  if (any_run(results, [](const Run& run) { return run.epoch_s.size() > 1; }))
    text += " Thick bars run from the fastest to the slowest epoch.";
  if (load_of(results)) return text;
  for (const char* const mode : {"averaging", "dp", "ddp"}) {
    const Run* before = nullptr;
    for (const auto& [devices, run] : timed_runs(results, mode)) {
      if (before && side_of(ratio_interval(ratios_of(before->epoch_s, run->epoch_s)), 1) == Side::below)
        text += concat(" ", mode, " takes longer on ", devices, " devices than on ", before->devices,
                       shared_cores(results, *run), ".");
      before = run;
    }
  }
  return text;
}

Chart memory_bars(const Results& results, std::vector<double> Run::*memory, const std::string& owner,
                  const std::string& caption) {
  Chart chart{.id = "memory-" + owner, .title = "Peak memory of every " + owner, .unit = "MB", .caption = caption};
  for (const Run& run : results.runs) {
    const std::vector<double>& mb = run.*memory;
    if (!run.ok || mb.empty()) continue;
    std::string tip = row_label(results, run) + ", " + owner;
    for (std::size_t i = 0; i < mb.size(); ++i) tip += concat(i > 0 ? ", " : " ", i, ": ", fixed(mb[i], 0), " MB");
    const double most = range_of(mb).high;
    chart.series_of(run.mode, mode_colour(run), "bar")
        .add(chart.add_row(row_label(results, run)), {most, 0, most}, tip);
  }
  return chart;
}

std::string parts_caption(const Results& results) {
  std::string text = "Means over the epoch, along the critical path; of ranks, means over them.";
  if (results.weak) text += " A step on N devices trains N times single's rows.";
  if (any_run(results, [](const Run& run) {
        return run.mode == "ddp" && run.step_us.communication < 0.99 * run.communication_us;
      }))
    text += " Communication that is hidden behind backward is not in it.";
  if (any_run(results, [](const Run& run) { return run.step_waiting_us.has_value(); }))
    text +=
        " Waiting is for the last rank to begin a collective, or for the last replica to end its part; communication "
        "is then moving and adding alone.";
  if (any_run(results, [](const Run& run) {
        return run.devices > 1 && run.mode != "dp" && !run.step_waiting_us && run.step_us.communication > 0;
      }))
    text += " If no trace of one clock parts them, communication includes waiting.";
  return text;
}

std::string waiting_text(const Run& run) {
  return run.mode == "dp" ? "waiting for the last replica" : "waiting for the last rank";
}

/// The runs in the picture of one step: single, and dp and ddp on the most devices on which both ran, without sharing
/// cores if possible.
std::vector<const Run*> runs_to_draw(const Results& results) {
  const auto traced = [&](const char* mode, int devices) {
    const Run* const run = find_run(results, mode, devices);
    return run && !run->median_step.empty() ? run : nullptr;
  };
  std::pair<bool, int> best = {false, 0};  // on cores of their own, devices
  for (const Run& run : results.runs)
    if (run.ok && run.mode == "ddp" && !run.median_step.empty() && traced("dp", run.devices))
      best = std::max(best, {!oversubscribed(results, run), run.devices});
  std::vector<const Run*> runs;
  if (const Run* const single = traced("single", 1)) runs.push_back(single);
  if (best.second > 0)
    for (const char* const mode : {"dp", "ddp"}) runs.push_back(find_run(results, mode, best.second));
  return runs;
}

/// Rank by rank, device by device, each followed by its communication.
std::vector<std::string> lanes_of(const Run& run) {
  std::set<std::tuple<std::size_t, std::string, std::string>> lanes;
  for (const StepEvent& event : run.median_step) {
    const std::string device = event.lane.substr(0, event.lane.find(','));
    lanes.emplace(device.size(), device, event.lane);  // "rank 10" behind "rank 9", "rank 1, communication" behind it
  }
  std::vector<std::string> names;
  for (const auto& lane : lanes) names.push_back(std::get<2>(lane));
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

std::string step_caption(const Results& results) {
  std::string text =
      "The step of median time, from the trace that every run records. A block that lies in another one "
      "is a part of it.";
  if (any_run(results, [](const Run& run) { return run.backend != "" && !run.median_step.empty(); }))
    text +=
        any_run(results, [](const Run& run) { return run.backend != "" && run.step_waiting_us; })
            ? " The ranks' times are of one clock: a collective waits until the last rank begins it, then moves and "
              "adds."
            : " The ranks' times are of different clocks or of work that runs asynchronously.";
  return text;
}

std::string loss_caption(const Results& results) {
  const Run* const single = find_run(results, "single", 1);
  std::string text;
  if (single && any_run(results, [&](const Run& run) {
        return &run != single && run.parameters_sha256 == single->parameters_sha256 && !run.parameters_sha256.empty();
      }))
    text = "Runs that learn the same bits lie on one line.";
  if (any_run(results, [](const Run& run) { return run.mode == "averaging"; }))
    text += concat(text.empty() ? "" : " ", "averaging trains every rank on its own part of the data.");
  return text;
}

}  // namespace

Chart speedup_chart(const Results& results) {
  const std::string base = base_of(results) ? base_of(results)->mode : "single";
  Chart chart{.id = "speedups",
              .title = "Speed-up over " + base_text(results),
              .unit = concat("times as fast as ", base, " on one device")};
  for (const Run& run : results.runs) {
    if (!is_result(results, run)) continue;
    const std::string limit = above_limit(results, run), label = row_label(results, run);
    const Interval speedup = drawn_speedup(run);
    const double row = chart.add_row(label);
    chart.series_of(run.mode, mode_colour(run), "bar")
        .add(row, speedup,
             concat(label, ": ", fixed(speedup.middle, 2), "x, ", times_range(speedup),
                    limit.empty() ? "" : ", " + limit));
    const auto mark = [&](const std::string& what, const char* colour, double value) {
      chart.series_of(what, colour, "mark").add(row, value, concat(label, ", ", what, ": ", fixed(value, 2), "x"));
    };
    const Run* const copies = find_run(results, "copies", run.devices);
    mark("median", "ink", *run.speedup);
    if (run.devices < 2 || oversubscribed(results, run)) continue;
    mark("ideal", "ideal", run.devices);
    if (copies && copies->speedup) mark("what copies reach", "copies", *copies->speedup);
  }
  // The legend has the modes first.
  std::stable_partition(chart.series.begin(), chart.series.end(),
                        [](const ChartSeries& series) { return series.shape == "bar"; });
  chart.caption =
      load_of(results) ? "Other programs disturbed most rounds: nothing is concluded." : "Bars are 95 % intervals.";
  return chart;
}

Chart overhead_chart(const Results& results) {
  Chart chart{.id = "losses", .title = "Why not ideal", .unit = "us of a step, beyond the ideal", .side_by_side = true};
  std::set<std::string> missing;
  for (const Run* run : runs_with_overhead(results)) {
    const Overhead overhead = *overhead_of(results, *run);
    const std::string label = row_label(results, *run);
    chart.caption +=
        concat(chart.caption.empty() ? results.weak ? "Ideal is single's step, of as many rows for its device. "
                                                    : "Ideal is single's step divided by the devices. "
                                     : " ",
               "A step of ", label, " takes ", us_text(overhead.step_us), ", of them ",
               grouped(std::llround(overhead.ideal_us())), " ideal.");
    if (!explained(*run, overhead)) {
      chart.caption += concat(" Its parts are not drawn: ", us_text(overhead.unexplained_us()), " are unexplained in ",
                              run->rounds_us.size(), " rounds.");
      continue;
    }
    ChartSeries series{label, run->mode, "bar"};
    double rest = overhead.lost_us();  // unexplained: what the bars above leave
    for (auto part = overhead.parts.begin() + 1; part != overhead.parts.end(); ++part) {
      const auto row = std::find(chart.rows.begin(), chart.rows.end(), part->title) - chart.rows.begin();
      if (row == std::ssize(chart.rows)) chart.add_row(part->title);
      if (!part->us) missing.insert(part->title);
      if (!part->us) continue;
      const bool last = part + 1 == overhead.parts.end();
      const std::optional<Interval> range = last ? std::nullopt : part->interval();
      const double us = last ? rest : range ? range->middle : *part->us;
      rest -= us;
      series.add(static_cast<double>(row), {us, std::min(0.0, us), std::max(0.0, us)},
                 concat(label, ", ", part->title, ": ", us_text(us), range ? " " + us_ends(*range) : ""));
    }
    chart.series.push_back(series);
  }
  if (!missing.empty()) chart.caption += " Not measured: " + listed({missing.begin(), missing.end()}) + ".";
  return chart;
}

Chart epoch_chart(const Results& results) {
  Chart chart{.id = "epochs", .title = "Time of an epoch against devices", .unit = "seconds", .log_x = true};
  std::set<int> counts;
  for (const Run& run : results.runs) {
    // Shared GPUs show what sharing costs; in a picture of scaling they would mislead.
    if (!run.ok || run.epoch_s.empty() || all_cores_row(results, run) || !sharing(run).empty()) continue;
    counts.insert(run.devices);
    const std::string name = row_name(results, run);
    const Interval range = range_of(run.epoch_s);
    ChartSeries& line = chart.series_of(name, mode_colour(run), "line");
    line.add(run.devices, range,
             concat(name, " on ", run.devices, ": ", seconds(range.middle), " s (", seconds(range.low), "..",
                    seconds(range.high), ")"));
  }
  const Run* const single = find_run(results, "single", 1);
  for (const int devices : counts) {
    chart.marks.emplace_back(devices, count_text(devices));
    if (!single || single->epoch_s.empty() || counts.size() < 2) continue;
    const double ideal = median(single->epoch_s) / devices;
    chart.series_of("ideal", "ideal", "dashed")
        .add(devices, ideal, concat("ideal on ", devices, ": ", seconds(ideal), " s"));
  }
  chart.caption = epoch_caption(results);
  return chart;
}

Chart loss_chart(const Results& results) {
  Chart chart{.id = "loss", .title = "Training loss", .unit = "loss"};
  const int epochs = results.settings.epochs;
  for (const Run& run : results.runs) {
    if (!run.ok || run.train_loss.size() < 2) continue;
    const std::string label = row_label(results, run);
    ChartSeries& line = chart.series_of(label, mode_colour(run), "line");
    for (std::size_t i = 0; i < run.train_loss.size(); ++i)
      if (const double loss = run.train_loss[i]; std::isfinite(loss))
        line.add(epochs * (static_cast<double>(i) + 0.5) / static_cast<double>(run.train_loss.size()), loss,
                 concat(label, ": ", fixed(loss, 4)));
  }
  for (int epoch = 0; epoch <= epochs && !chart.empty(); ++epoch)
    if (epochs <= 10 || epoch % (epochs / 5) == 0)
      chart.marks.emplace_back(epoch, epoch == 0 ? "start" : concat("epoch ", epoch));
  chart.caption = loss_caption(results);
  return chart;
}

Chart memory_chart(const Results& results) {
  return memory_bars(results, &Run::peak_memory_mb, "process", "Peak of the largest; hovering shows that of each.");
}

Chart device_memory_chart(const Results& results) {
  return memory_bars(
      results, &Run::device_memory_mb, "device",
      "The most that tensors and workspaces took on the fullest, without CUDA's own and its libraries'.");
}

Chart parts_chart(const Results& results) {
  Chart chart{.id = "parts", .title = "Where a step's time goes", .unit = "us a step"};
  for (const Run& run : results.runs) {
    if (!run.ok || run.step_us.sum() <= 0) continue;
    const std::string label = row_label(results, run), whole = us_text(run.step_us.sum());
    const double row = chart.add_row(label);
    const StepParts waiting = waiting_of(run);
    double at = 0;
    const auto add = [&](double us, const std::string& part, const std::string& what) {
      if (us <= 0) return;
      chart.bar(part).add(row, {us, at, at + us}, concat(label, ": ", what, " ", us_text(us), " of ", whole));
      at += us;
    };
    for (const PartName& part : kStepParts) {
      add(run.step_us.*part.member - waiting.*part.member, part.name, part.name);
      add(waiting.*part.member, kWaiting, waiting_text(run));
    }
  }
  chart.caption = parts_caption(results);
  return chart;
}

Chart step_chart(const Results& results) {
  Chart chart{.id = "step", .title = "One step, as it ran", .unit = "us"};
  for (const Run* run : runs_to_draw(results))
    for (const std::string& lane : lanes_of(*run)) {
      const std::string title = concat(run->mode, ", ", lane);
      const double row = chart.add_row(lane.find(", ") == lane.npos ? title : lane.substr(lane.find(", ") + 2));
      for (std::size_t i = 0; i < run->median_step.size(); ++i) {
        const StepEvent& event = run->median_step[i];
        if (event.lane != lane) continue;
        const std::string tip = concat(title, ": ", event.name == kWaiting ? waiting_text(*run) : event.name, " ",
                                       us_text(event.end_us - event.begin_us));
        for (const auto& [begin, end] : bare_stretches(run->median_step, i))
          chart.bar(part_of(event.name)).add(row, {end - begin, begin, end}, tip);
      }
    }
  chart.caption = step_caption(results);
  return chart;
}

}  // namespace duet::cli
