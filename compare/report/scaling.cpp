#include "compare/report/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>

#include "compare/report/evidence.h"
#include "lib/blocks.h"
#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

/// `backend` of the ranks; empty: any.
bool has_terms(const CostModel& model, Mode mode, bool has_link, const std::string& backend = "") {
  if (mode == Mode::dp) return model.dp.has_value();
  const auto fits = [&](const MeasuredLink& link) { return backend.empty() || link.backend == backend; };
  return (has_link || std::any_of(model.links.begin(), model.links.end(), fits)) &&
         !(mode == Mode::averaging ? model.parameter_bytes.empty() : model.buckets.empty());
}

/// Returns the modes to predict: unless the plan names them, those that ran, as a measured row can refute these only.
std::vector<Mode> modes_of(const Results& results, const CostModel& model, const ScalingPlan& plan) {
  if (!plan.modes.empty()) return plan.modes;
  std::vector<Mode> modes;
  for (const Mode mode : {Mode::ddp, Mode::dp, Mode::averaging}) {
    const bool ran = any_run(results, [mode](const Run& run) { return run.mode == name(mode); });
    if (has_terms(model, mode, plan.link.has_value()) && (ran || (plan.link && mode != Mode::dp)))
      modes.push_back(mode);
  }
  return modes;
}

/// A timed run on devices and cores of its own.
bool comparable(const Results& results, const Run& run) {
  return run.ok && run.timed() && !oversubscribed(results, run) && sharing(run).empty() && !all_cores_row(results, run);
}

/// In place of the measured link. The network between hosts is not what connects the devices of one.
std::optional<Link> link_of(const ScalingPlan& plan, const ScalingRow& row) {
  const bool network = std::any_of(plan.hosts.begin(), plan.hosts.end(), [](int hosts) { return hosts > 1; });
  return network && row.hosts == 1 ? std::nullopt : plan.link;
}

/// Where the row was measured, over the backend whose link the model has first; else null.
const Run* measured_run(const Results& results, const ScalingPlan& plan, const ScalingRow& row) {
  const bool other_link = row.devices > 1 && link_of(plan, row);
  if (row.hosts > 1 || other_link) return nullptr;
  const std::vector<MeasuredLink>& links = model_of(results).links;
  for (const Run& run : results.runs) {
    const bool same_link = run.backend.empty() || links.empty() || run.backend == links.front().backend;
    const bool same_cell = run.mode == name(row.mode) && run.devices == row.devices && run.batch == row.batch;
    if (same_cell && same_link && comparable(results, run)) return &run;
  }
  return nullptr;
}

/// A row's time. Throws DataError where numbers that are each within their limits give one that no step takes.
double checked_us(const ScalingRow& row, double us, const char* from) {
  constexpr double kLeast = 1e-6;
  require<DataError>(us >= kLeast && us <= kLargestNumber, "results: by ", from, " a step of ", name(row.mode), " on ",
                     row.devices, " devices and a batch of ", row.batch, " takes ", us, " us, expected ", kLeast,
                     " to ", kLargestNumber);
  return us;
}

/// All rows but for their speed-up.
std::vector<ScalingRow> rows_of(const Results& results, const ScalingPlan& plan) {
  CostModel model = model_of(results);
  if (model.buckets.empty() && plan.link && results.parameters > 0)  // all-reduces weren't timed, as on GPUs
    model.buckets = usual_buckets(4 * static_cast<double>(results.parameters));
  const std::int64_t batch = plan.batch > 0 ? plan.batch : results.settings.batch;
  const int most = *std::max_element(plan.devices.begin(), plan.devices.end());
  std::vector<ScalingRow> rows = {{.mode = Mode::single, .batch = batch}};
  for (const Mode mode : modes_of(results, model, plan))
    for (const int hosts : plan.hosts)
      for (const int devices : plan.devices) {
        const int all = devices * hosts;
        const bool one_host = hosts == 1, skipped = one_host ? all == 1 : devices != most || mode == Mode::dp;
        if (!skipped && (plan.weak || batch >= all))
          rows.push_back({.mode = mode, .devices = all, .hosts = hosts, .batch = plan.weak ? batch * all : batch});
      }
  for (ScalingRow& row : rows) {
    const Run* const run = measured_run(results, plan, row);
    const int blocks = results.settings.blocks;
    row.computed = simulate_step(
        model, {.mode = row.mode,
                .devices = row.devices,
                .hosts = row.hosts,
                .batch = static_cast<double>(row.batch),
                .blocks = row.mode == Mode::averaging || blocks == 0 ? 0 : std::max(blocks, blocks_for(row.devices)),
                .link = link_of(plan, row)});
    row.measured = run != nullptr;
    row.slowdown_known = row.devices == row.hosts || !model.slowdown.empty();
    row.step_us = checked_us(row, row.computed.total_us(), "model");
    if (run) row.step_us = checked_us(row, step_us(*run), "samples_per_s");
  }
  return rows;
}

}  // namespace

const CostModel& model_of(const Results& results) {
  require<DataError>(results.model.has_value(), "results: model is null",
                     results.model_notes.empty()
                         ? "; duet compare with a time budget (--time-budget) measures and writes one"
                         : ": " + listed(results.model_notes));
  return *results.model;
}

std::vector<ScalingRow> scaling_rows(const Results& results, const ScalingPlan& plan) {
  std::vector<ScalingRow> rows = rows_of(results, plan);
  const ScalingRow single = rows.front();
  for (ScalingRow& row : rows) {
    const double own = row.measured && single.measured ? row.step_us : row.computed.total_us();
    const double alone = row.measured && single.measured ? single.step_us : single.computed.total_us();
    row.speedup = static_cast<double>(row.batch) / own / (static_cast<double>(single.batch) / alone);
  }
  return rows;
}

std::optional<SimulatedStep> predicted_step(const Results& results, const Run& run) {
  if (!results.model || !comparable(results, run)) return {};
  for (const Mode mode : {Mode::single, Mode::averaging, Mode::dp, Mode::ddp})
    if (run.mode == name(mode) && (run.devices == 1 || has_terms(*results.model, mode, false, run.backend)))
      return simulate_step(*results.model, {.mode = run.devices == 1 ? Mode::single : mode,
                                            .devices = run.devices,
                                            .batch = static_cast<double>(run.batch),
                                            .blocks = run.blocks,
                                            .backend = run.backend});
  return {};
}

std::optional<double> prediction_error(const Results& results, std::string* why) {
  if (!results.model) return std::nullopt;
  const auto withheld = [why](const std::string& reason) {
    if (why) *why = reason;
    return std::nullopt;
  };
  if (load_of(results)) return withheld("other programs disturbed most rounds");
  const double of_batches = results.model->step.worst_error_share;
  double worst = of_batches;
  for (const Run& run : results.runs) {
    const std::optional<SimulatedStep> step = predicted_step(results, run);
    const std::optional<Interval> speedup = speedup_interval(run);
    if (!step || run.devices < 2 || run.mostly_busy()) continue;
    const double ratio = step->total_us() / step_us(run);  // above 1: too slow
    worst = std::max(worst, std::abs(ratio - 1));
    if (!speedup) continue;
    const double fastest = speedup->middle / speedup->high, slowest = speedup->middle / speedup->low;
    if (ratio * (1 + of_batches) < fastest || ratio * (1 - of_batches) > slowest)
      return withheld(concat("the model's step of ", mode_on(results, run), " is ", fixed(100 * std::abs(ratio - 1), 0),
                             ratio < 1 ? " % shorter" : " % longer", " than measured, outside its interval"));
  }
  return worst < 1 ? std::optional(worst) : withheld("the intervals of the measured rows are too wide");
}

std::string speedup_range(const ScalingRow& row, double error, int digits) {
  const double high = std::min(row.speedup * (1 + error), std::max(row.speedup, static_cast<double>(row.devices)));
  const std::string low = fixed(row.speedup * (1 - error), digits), most = fixed(high, digits);
  return low == most || row.devices == 1 ? fixed(row.speedup, digits) + "x" : low + " to " + most + "x";
}

std::vector<std::string> prediction_lines(const Results& results) {
  std::vector<std::string> lines;
  std::string why;
  const bool predicts = prediction_error(results, &why).has_value();
  if (!why.empty()) lines.push_back(concat("Nothing is predicted for other numbers of devices: ", why, "."));
  if (const std::optional<CostModel>& model = results.model; predicts) {
    const StepCost& step = model->step;
    lines.push_back(concat("A step of single costs ", us_text(step.fixed_us), " and ", fixed(step.per_sample_us, 1),
                           " us a sample, within ", fixed(100 * step.worst_error_share, 1),
                           " % at every batch measured."));
    if (model->dp || !model->links.empty())
      lines.push_back(model->break_even_batch ? concat("Below a batch of ", fixed(*model->break_even_batch, 0),
                                                       " a second device costs time here, by this model.")
                                              : "A second device saves time at no batch here, by this model.");
  }
  for (const Run& run : results.runs) {
    const std::optional<SimulatedStep> step = predicted_step(results, run);
    if (!step || run.devices < 2) continue;
    const double predicted = step->total_us(), measured = step_us(run);
    lines.push_back(concat(row_name(results, run), " on ", run.devices, " devices: predicted ", us_text(predicted),
                           " a step, measured ", us_text(measured), ", ", predicted < measured ? "" : "+",
                           fixed(100 * (predicted / measured - 1), 1), " %."));
  }
  for (const std::string& note : results.model_notes)
    lines.push_back(concat(results.model ? "Of the model: " : "No model: ", note, "."));
  return lines;
}

std::string to_json(const std::vector<ScalingRow>& rows) {
  Json list = Json::array();
  for (const ScalingRow& row : rows) {
    Json parts;
    for (const SimulatedPart& part : kSimulatedParts) parts[part.field] = row.computed.*part.us;
    list.push_back({{"mode", name(row.mode)},
                    {"devices", row.devices},
                    {"hosts", row.hosts},
                    {"batch", row.batch},
                    {"measured", row.measured},
                    {"slowdown_known", row.slowdown_known},
                    {"step_us", row.step_us},
                    {"speedup", row.speedup},
                    {"efficiency", row.efficiency()},
                    {"bounded_by", row.computed.bounded_by()},
                    {"computed_us", row.computed.total_us()},
                    {"parts_us", parts}});
  }
  return Json{{"duet", DUET_VERSION}, {"rows", list}}.dump(1) + "\n";
}

namespace {

std::string tip_of(const ScalingRow& row) {
  const std::string hosts = row.hosts > 1 ? concat(" of ", row.hosts, " hosts") : "";
  return concat(name(row.mode), " on ", count_text(row.devices), hosts, ", batch ", grouped(row.batch), ": ",
                us_text(row.step_us), ", ", fixed(row.speedup, 2), "x, ", fixed(100 * row.efficiency(), 0),
                " %, bounded by ", row.computed.bounded_by(), row.measured ? ", measured" : ", computed");
}

bool drawable(const std::vector<ScalingRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ScalingRow& row) { return row.devices > 1; });
}

/// A value of every row against devices; each mode's line begins at single's row.
template <class Value>
Chart over_devices(const std::vector<ScalingRow>& rows, Chart chart, const Value& value) {
  if (!drawable(rows)) return chart;
  chart.log_x = true;
  std::set<int> counts;
  for (const ScalingRow& row : rows) {
    counts.insert(row.devices);
    ChartSeries& line = chart.series_of(name(row.mode), name(row.mode), "line");
    const auto add = [&](const ScalingRow& at) {
      line.add(at.devices, value(at), tip_of(at));
      line.points.back().computed = !at.measured;
    };
    if (line.points.empty() && row.devices > rows.front().devices) add(rows.front());
    add(row);
  }
  for (const int count : counts) chart.marks.emplace_back(count, count_text(count));
  return chart;
}

}  // namespace

Chart efficiency_chart(const std::vector<ScalingRow>& rows) {
  return over_devices(rows, {.id = "efficiency", .title = "Efficiency against devices", .unit = "%"},
                      [](const ScalingRow& row) { return 100 * row.efficiency(); });
}

Chart step_time_chart(const std::vector<ScalingRow>& rows) {
  return over_devices(rows, {.id = "step-time", .title = "Time of a step against devices", .unit = "us", .log_y = true},
                      [](const ScalingRow& row) { return row.step_us; });
}

Chart bounds_chart(const std::vector<ScalingRow>& rows) {
  constexpr const char* kColours[] = {"forward",   "backward", "update",  "replicate", "communication", "input",
                                      "averaging", "gather",   "scatter", "dp",        "single"};  // by kSimulatedParts
  static_assert(std::size(kColours) == std::size(kSimulatedParts));
  Chart chart{.id = "bounds", .title = "Parts of a computed step", .unit = "% of the step"};
  if (!drawable(rows)) return chart;
  for (const ScalingRow& row : rows) {
    const double at = chart.add_row(concat(name(row.mode), " ", grouped(row.devices)));
    double sum = 0, from = 0;  // a smaller batch can also be a gain, which has no bar
    for (const SimulatedPart& part : kSimulatedParts) sum += std::max(0.0, row.computed.*part.us);
    for (std::size_t i = 0; i < std::size(kSimulatedParts); ++i) {
      const SimulatedPart& part = kSimulatedParts[i];
      const double us = row.computed.*part.us, to = from + 100 * us / sum;
      if (us <= 0) continue;
      chart.series_of(part.name, kColours[i], "bar")
          .add(at, {to - from, from, to}, concat(tip_of(row), "; ", part.name, " ", us_text(us)));
      from = to;
    }
  }
  return chart;
}

}  // namespace duet::cli
