#include "cli/bench/step_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/system/machine.h"
#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string us(double value) { return grouped(std::llround(value)); }

std::string row_text(const StepRow& row, std::int64_t batch) {
  char line[300];
  std::snprintf(line, sizeof line, " %-16s %7d %7d", row.name.c_str(), row.devices, row.threads_per_device);
  if (!row.error.empty()) return concat(line, "  failed: ", row.error, "\n");
  const double middle = median(row.rounds_us);
  std::string text = line;
  std::snprintf(line, sizeof line, "  %10s  %10s..%-10s  %10s", us(middle).c_str(), us(row.fastest_us).c_str(),
                us(row.slowest_us).c_str(), us(static_cast<double>(batch) / middle * 1e6).c_str());
  text += line;
  if (!row.run) return text + "\n";
  const StepParts& parts = row.run->step_us;
  std::snprintf(line, sizeof line, "  %9s  %9s  %13s  %9s", us(parts.forward + parts.loss).c_str(),
                us(parts.backward).c_str(),
                us(parts.scatter + parts.replicate + parts.gather + parts.communication).c_str(),
                us(parts.input + parts.update).c_str());
  text += line;
  if (const std::string note = sharing(*row.run); !note.empty()) text += "  " + note;
  if (row.run->workers == "thread") text += "  ranks are threads";
  return text + (row.run->graph ? "  as CUDA graphs\n" : "\n");
}

/// Rows that others are compared with.
struct Column {
  std::string title;
  bool (*belongs)(const StepRow& row, const StepRow& other);
};

bool same_workers(const StepRow& row, const StepRow& other, const char* name) {
  return other.name == name && other.workers() == row.workers();
}

const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      {"single",
       [](const StepRow&, const StepRow& other) { return other.name == "single" && other.threads_per_device == 1; }},
      {"torch", [](const StepRow& row, const StepRow& other) { return same_workers(row, other, "torch"); }},
      {"torch, tuned",
       [](const StepRow& row, const StepRow& other) { return same_workers(row, other, "torch, tuned"); }},
      {"torch ddp", [](const StepRow& row, const StepRow& other) { return same_workers(row, other, "torch ddp"); }},
      {"torch ddp, tuned",
       [](const StepRow& row, const StepRow& other) { return same_workers(row, other, "torch ddp, tuned"); }}};
  return all;
}

std::optional<Ratio> ratio_in(const Column& column, const StepRow& row, const std::vector<StepRow>& rows) {
  const auto other =
      std::find_if(rows.begin(), rows.end(), [&](const StepRow& candidate) { return column.belongs(row, candidate); });
  return other == rows.end() || &*other == &row ? std::nullopt : times_as_fast(row, *other);
}

std::string ratios_text(const std::vector<StepRow>& rows, bool torch) {
  std::string text = "  times as fast as ...";
  char cell[100];
  const std::size_t shown = torch ? columns().size() : 1;
  std::snprintf(cell, sizeof cell, "%11s", "");
  text += cell;
  for (std::size_t i = 0; i < shown; ++i) {
    std::snprintf(cell, sizeof cell, "  %21s", columns()[i].title.c_str());
    text += cell;
  }
  text += '\n';
  for (const StepRow& row : rows) {
    if (row.torch || !row.error.empty()) continue;
    std::snprintf(cell, sizeof cell, "  %-16s %7d %7d", row.name.c_str(), row.devices, row.threads_per_device);
    text += cell;
    for (std::size_t i = 0; i < shown; ++i) {
      const std::optional<Ratio> ratio = ratio_in(columns()[i], row, rows);
      const std::string numbers =
          ratio ? concat(fixed(ratio->middle, 2), " (", fixed(ratio->low, 2), "..", fixed(ratio->high, 2), ")") : "-";
      std::snprintf(cell, sizeof cell, "  %21s", numbers.c_str());
      text += cell;
    }
    text += '\n';
  }
  return text;
}

Json json_of(const StepRow& row, const std::vector<StepRow>& rows) {
  Json ratios = Json::object();
  for (const Column& column : columns())
    if (const std::optional<Ratio> ratio = ratio_in(column, row, rows); ratio && !row.torch)
      ratios[column.title] = {{"median", ratio->middle}, {"low", ratio->low}, {"high", ratio->high}};
  return {{"name", row.name},
          {"devices", row.devices},
          {"threads_per_device", row.threads_per_device},
          {"error", row.error},
          {"round_medians_us", row.rounds_us},
          {"fastest_us", row.fastest_us},
          {"slowest_us", row.slowest_us},
          {"startups_s", row.startups_s},
          {"times_as_fast_as", ratios}};
}

Json json_of(const OperatorTable& table) {
  Json rows = Json::array();
  for (const OperatorRow& row : table.rows)
    rows.push_back({{"name", row.name},
                    {"us_per_image", row.us},
                    {"executed_flop_per_image", row.executed},
                    {"dense_flop_per_image", row.dense}});
  return {{"isa", table.isa}, {"peak_gflops", table.peak_gflops}, {"step_us_per_image", table.step_us}, {"rows", rows}};
}

}  // namespace

void StepRow::add(const std::vector<double>& steps_us, double startup_s) {
  const auto [low, high] = std::minmax_element(steps_us.begin(), steps_us.end());
  fastest_us = rounds_us.empty() ? *low : std::min(fastest_us, *low);
  slowest_us = rounds_us.empty() ? *high : std::max(slowest_us, *high);
  rounds_us.push_back(median(steps_us));
  startups_s.push_back(startup_s);
}

std::optional<Ratio> times_as_fast(const StepRow& row, const StepRow& other) {
  if (!row.error.empty() || !other.error.empty()) return std::nullopt;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(row.rounds_us.size(), other.rounds_us.size()); ++i)
    ratios.push_back(other.rounds_us[i] / row.rounds_us[i]);
  if (ratios.empty()) return std::nullopt;
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return Ratio{median(ratios), *low, *high};
}

std::string to_text(const BenchOptions& options, const StepTimes& times) {
  std::string text =
      concat("whole steps of ", options.batch, " images, ", options.repeats, " rounds of ", options.steps,
             ", in us: median of the rounds' medians, fastest..slowest; parts are means\n");
  if (options.device == DeviceKind::cuda)
    text += concat("on ", kind_title(options.device), ", precision ", name(options.precision),
                   "; parts are the host's times, the rest holds its wait for the GPU; steps as CUDA graphs are timed "
                   "from one reading of the loss to the next\n");
  char head[300];
  std::snprintf(head, sizeof head, " %-16s %7s %7s  %10s  %22s  %10s  %9s  %9s  %13s  %9s\n", "mode", "devices",
                "threads", "median", "range", "images/s", "forward", "backward", "communication", "the rest");
  text += head;
  for (const StepRow& row : times.rows) text += row_text(row, options.batch);
  if (!times.torch.empty())
    text += concat(" torch is PyTorch ", times.torch,
                   " under --vs-torch; tuned: channels_last, and a malloc that keeps memory\n");
  text += "ratios inside each round: median (lowest..highest)\n" + ratios_text(times.rows, !times.torch.empty());
  if (times.operators) text += to_text(*times.operators, options.batch);
  return text;
}

std::string to_json(const BenchOptions& options, const StepTimes& times) {
  const Machine machine = this_machine();
  Json rows = Json::array();
  for (const StepRow& row : times.rows) rows.push_back(json_of(row, times.rows));
  Json json = {{"duet", DUET_VERSION},
               {"cpu", machine.cpu},
               {"cores", machine.cores},
               {"isa", machine.isa},
               {"device", kind_title(options.device)},
               {"precision", name(options.precision)},
               {"model", options.model},
               {"batch", options.batch},
               {"rounds", options.repeats},
               {"steps", options.steps},
               {"torch", times.torch.empty() ? Json(nullptr) : Json(times.torch)},
               {"rows", rows}};
  json["operators"] = times.operators ? json_of(*times.operators) : Json(nullptr);
  return json.dump(1) + "\n";
}

}  // namespace duet::cli
