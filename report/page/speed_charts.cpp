// The two pictures beside the verdict: how fast, and why not ideal.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include "cli/system/number_text.h"
#include "compare/losses.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/interval_text.h"
#include "report/page/chart.h"
#include "report/report.h"
#include "report/speed.h"

namespace duet::cli {
namespace {

constexpr double kNoteworthy = 0.05;  // of a step, unexplained

/// A part of the loss in words; results.json's name where that is one.
std::string words_of(const std::string& part) {
  if (part == "smaller_batch") return "smaller batch";
  if (part == "machine") return "devices side by side";
  if (part == "uneven") return "waiting for the last";
  return part;
}

/// Whether a run's speed-up is a result: on one device the wrappers run single's own code, and single is 1 by
/// definition.
bool is_result(const Results& results, const Run& run) {
  if (!run.ok || !run.speedup || run.mode == "copies") return false;
  return run.devices > 1 || all_cores_row(results, run);
}

}  // namespace

Chart speedup_chart(const Results& results) {
  Chart chart{.id = "speedups", .title = "Speed-up over single", .unit = "times as fast as single on one device"};
  for (const Run& run : results.runs) {
    if (!is_result(results, run)) continue;
    const auto row = static_cast<double>(chart.rows.size());
    const std::string limit = above_limit(results, run), label = row_label(results, run);
    const Interval speedup = drawn_speedup(run);
    chart.rows.push_back(label);
    chart.series_of(run.mode, run.mode, "bar")
        .points.push_back({row, speedup.middle, speedup.low, speedup.high,
                           concat(label, ": ", fixed(speedup.middle, 2), "x, ", times_range(speedup),
                                  limit.empty() ? "" : ", " + limit)});
  }
  // Series behind those of the modes, so that the legend has them last.
  double row = 0;
  for (const Run& run : results.runs) {
    if (!is_result(results, run)) continue;
    const auto mark = [&](const std::string& what, const char* colour, double value) {
      chart.series_of(what, colour, "mark")
          .points.push_back(
              {row, value, value, value, concat(row_label(results, run), ", ", what, ": ", fixed(value, 2), "x")});
    };
    const Run* const copies = find_run(results, "copies", run.devices);
    mark("median", "ink", *run.speedup);
    if (run.devices > 1 && !oversubscribed(results, run)) {
      mark("ideal", "ideal", run.devices);
      if (copies && copies->speedup) mark("what copies reach", "copies", *copies->speedup);
    }
    ++row;
  }
  return chart;
}

Chart losses_chart(const Results& results) {
  Chart chart{.id = "losses", .title = "Why not ideal", .unit = "us of a step, beyond the ideal", .side_by_side = true};
  for (const Run* run : runs_with_losses(results)) {
    const Losses losses = take_apart(*loss_inputs(results, *run));
    const std::string label = row_label(results, *run);
    ChartSeries series{label, run->mode, "bar"};
    const bool first = chart.rows.empty();
    for (std::size_t i = 1; i < losses.parts.size(); ++i) {
      const auto& [name, us] = losses.parts[i];
      if (first) chart.rows.push_back(words_of(name));
      if (!us) continue;
      const std::optional<Interval> range = loss_interval(results, *run, name);
      series.points.push_back({static_cast<double>(i - 1), *us, std::min(0.0, *us), std::max(0.0, *us),
                               concat(label, ", ", words_of(name), ": ", grouped(std::llround(*us)), " us",
                                      range ? " " + us_range(range->low, range->high) : "")});
    }
    chart.series.push_back(series);
  }
  return chart;
}

std::string losses_caption(const Results& results) {
  std::string text, missing;
  for (const Run* run : runs_with_losses(results)) {
    const Losses losses = take_apart(*loss_inputs(results, *run));
    const std::string label = row_label(results, *run);
    text += concat(text.empty() ? results.weak ? "Ideal is single's step, of as many rows for its device. "
                                               : "Ideal is single's step divided by the devices. "
                                : " ",
                   "A step of ", label, " takes ", grouped(std::llround(losses.step_us)), " us, of them ",
                   grouped(std::llround(losses.parts[0].us.value_or(0))), " ideal.");
    const double unexplained = losses.unexplained_us();
    if (std::fabs(unexplained) > kNoteworthy * run->step_us.sum())
      text += concat(" ", fixed(100 * unexplained / run->step_us.sum(), 0), " % of the step of ", label,
                     " is unexplained.");
    else if (!explained(*run, losses))
      text += concat(" No cause stands out of the noise of ", run->rounds_us.size(), " rounds.");
    for (const LossPart& part : losses.parts)
      if (!part.us && missing.find(words_of(part.name)) == std::string::npos)
        missing += (missing.empty() ? "" : ", ") + words_of(part.name);
  }
  return missing.empty() ? text : concat(text, " Not measured: ", missing, ".");
}

}  // namespace duet::cli
