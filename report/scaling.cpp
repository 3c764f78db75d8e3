#include "report/scaling.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/json_fields.h"
#include "report/report.h"

namespace duet::cli {
namespace {

constexpr std::array kModes = {Mode::ddp, Mode::dp, Mode::averaging};

/// `backend` of the ranks; empty: any.
bool has_terms(const CostModel& model, Mode mode, bool has_link, const std::string& backend = "") {
  if (mode == Mode::dp) return model.dp.has_value();
  const auto fits = [&](const MeasuredLink& link) { return backend.empty() || link.backend == backend; };
  return (has_link || std::any_of(model.links.begin(), model.links.end(), fits)) &&
         !(mode == Mode::averaging ? model.parameter_bytes.empty() : model.buckets.empty());
}

std::vector<Mode> modes_of(const CostModel& model, const ScalingPlan& plan) {
  if (!plan.modes.empty()) return plan.modes;
  std::vector<Mode> modes;
  for (const Mode mode : kModes)
    if (has_terms(model, mode, plan.link.has_value())) modes.push_back(mode);
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
  const CostModel& model = model_of(results);
  const std::int64_t batch = plan.batch > 0 ? plan.batch : results.settings.batch;
  const int most = *std::max_element(plan.devices.begin(), plan.devices.end());
  std::vector<ScalingRow> rows = {{.mode = Mode::single, .batch = batch}};
  for (const Mode mode : modes_of(model, plan))
    for (const int hosts : plan.hosts)
      for (const int devices : plan.devices) {
        const int all = devices * hosts;
        const bool one_host = hosts == 1, skipped = one_host ? all == 1 : devices != most || mode == Mode::dp;
        if (!skipped && (plan.weak || batch >= all))
          rows.push_back({.mode = mode, .devices = all, .hosts = hosts, .batch = plan.weak ? batch * all : batch});
      }
  for (ScalingRow& row : rows) {
    const Run* const run = measured_run(results, plan, row);
    row.computed = simulate_step(model, {.mode = row.mode,
                                         .devices = row.devices,
                                         .hosts = row.hosts,
                                         .batch = static_cast<double>(row.batch),
                                         .link = link_of(plan, row)});
    row.measured = run != nullptr;
    row.step_us = checked_us(row, row.computed.total_us(), "model");
    if (run) row.step_us = checked_us(row, step_us(*run), "samples_per_s");
  }
  return rows;
}

}  // namespace

const CostModel& model_of(const Results& results) {
  require<DataError>(results.model.has_value(),
                     "results: model is null; duet compare with a time budget (--time-budget) measures and writes one");
  return *results.model;
}

double step_us(const Run& run) { return static_cast<double>(run.batch) / run.samples_per_s * 1e6; }

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
                                            .backend = run.backend});
  return {};
}

namespace {

/// The model's costs, and what it predicts of the cells that were measured.
std::vector<std::string> lines_of(const Results& results, const CostModel& model) {
  const StepCost& step = model.step;
  const std::string more = step.knee ? concat(" up to ", fixed(step.knee->batch, 0), " and ",
                                              fixed(step.knee->per_sample_us, 1), " us above")
                                     : "";
  std::vector<std::string> lines = {concat("A step of single costs ", grouped(std::llround(step.fixed_us)), " us and ",
                                           fixed(step.per_sample_us, 1), " us a sample", more, ", within ",
                                           fixed(100 * step.worst_error_share, 1), " % at every batch measured.")};
  if (model.dp || !model.links.empty())
    lines.push_back(model.break_even_batch ? concat("Below a batch of ", fixed(*model.break_even_batch, 0),
                                                    " a second device costs time here, by this model.")
                                           : "A second device saves time at no batch here, by this model.");
  for (const Run& run : results.runs) {
    const std::optional<SimulatedStep> step_of_run = predicted_step(results, run);
    if (!step_of_run || run.devices < 2) continue;
    const double predicted = step_of_run->total_us(), measured = step_us(run);
    lines.push_back(concat(row_name(results, run), " on ", run.devices, " devices: predicted ",
                           grouped(std::llround(predicted)), " us a step, measured ", grouped(std::llround(measured)),
                           " us, ", predicted < measured ? "" : "+", fixed(100 * (predicted / measured - 1), 1),
                           " %."));
  }
  return lines;
}

}  // namespace

std::vector<std::string> prediction_lines(const Results& results) {
  std::vector<std::string> lines;
  if (results.model) lines = lines_of(results, *results.model);
  for (const std::string& note : results.model_notes)
    lines.push_back(concat(results.model ? "Of the model: " : "No model: ", note, "."));
  return lines;
}

std::string to_json(const std::vector<ScalingRow>& rows) {
  Json list = Json::array();
  for (const ScalingRow& row : rows) {
    Json parts;
    each_part([&](const char* part, double SimulatedStep::*member) { parts[part] = row.computed.*member; });
    list.push_back({{"mode", name(row.mode)},
                    {"devices", row.devices},
                    {"hosts", row.hosts},
                    {"batch", row.batch},
                    {"measured", row.measured},
                    {"step_us", row.step_us},
                    {"speedup", row.speedup},
                    {"efficiency", row.efficiency()},
                    {"bounded_by", row.computed.bounded_by()},
                    {"computed_us", row.computed.total_us()},
                    {"parts_us", parts}});
  }
  return Json{{"duet", DUET_VERSION}, {"rows", list}}.dump(1) + "\n";
}

}  // namespace duet::cli
