#include "cli/bench/step_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string us(double value, std::size_t column) { return flush_right(grouped(std::llround(value)), column); }

constexpr std::size_t kNames = 20;  // column of names

std::string head_of(const StepRow& row) {
  return concat(flush_left(row.name, kNames), " ", flush_right(concat(row.devices), 7), " ",
                flush_right(concat(row.threads_per_device), 7));
}

std::string row_text(const StepRow& row, std::int64_t batch) {
  std::string text = " " + head_of(row);
  if (!row.error.empty()) return concat(text, "  failed: ", row.error, "\n");
  const double middle = median(row.rounds_us);
  text += concat("  ", us(middle, 10), "  ", us(row.fastest_us, 10), "..", flush_left(us(row.slowest_us, 0), 10), "  ",
                 us(static_cast<double>(batch) / middle * 1e6, 10));
  text += "  " + flush_right(row.startup_s > 0 ? seconds(row.startup_s) : "-", 8);
  if (row.parts) {
    const StepParts& parts = *row.parts;
    text += concat("  ", us(parts.forward + parts.loss, 9), "  ", us(parts.backward, 9), "  ",
                   us(parts.scatter + parts.replicate + parts.gather + parts.communication, 13), "  ",
                   us(parts.input + parts.update, 9));
  }
  if (!row.run) return text + "\n";
  if (const std::string note = sharing(*row.run); !note.empty()) text += "  " + note;
  if (row.run->workers == "thread") text += "  ranks are threads";
  return text + (row.run->graph ? "  as CUDA graphs\n" : "\n");
}

/// Rows that others are compared with: PyTorch's on as many cores.
constexpr const char* kColumns[] = {"single", "torch", "torch, tuned", "torch ddp", "torch ddp, tuned"};

std::optional<Ratio> ratio_to(const std::string& column, const StepRow& row, const std::vector<StepRow>& rows) {
  const auto other = std::find_if(rows.begin(), rows.end(), [&](const StepRow& candidate) {
    return candidate.name == column &&
           (column == "single" ? candidate.threads_per_device == 1 : candidate.workers() == row.workers());
  });
  return other == rows.end() || &*other == &row ? std::nullopt : times_as_fast(row, *other);
}

std::string ratios_text(const std::vector<StepRow>& rows, bool torch) {
  const std::size_t shown = torch ? std::size(kColumns) : 1;
  std::string text = flush_left("  times as fast as ...", kNames + 18);
  for (std::size_t i = 0; i < shown; ++i) text += "  " + flush_right(kColumns[i], 21);
  text += '\n';
  for (const StepRow& row : rows) {
    if (row.torch || !row.error.empty()) continue;
    text += "  " + head_of(row);
    for (std::size_t i = 0; i < shown; ++i) {
      const std::optional<Ratio> ratio = ratio_to(kColumns[i], row, rows);
      const std::string numbers =
          ratio ? concat(fixed(ratio->middle, 2), " (", fixed(ratio->low, 2), "..", fixed(ratio->high, 2), ")") : "-";
      text += "  " + flush_right(numbers, 21);
    }
    text += '\n';
  }
  return text;
}

std::string synchronisation_text(const std::vector<StepRow>& rows) {
  std::string text;
  for (const StepRow& row : rows) {
    if (row.synchronisation_us.empty()) continue;
    const auto [low, high] = std::minmax_element(row.synchronisation_us.begin(), row.synchronisation_us.end());
    text += concat("  ", head_of(row), "  ", us(median(row.synchronisation_us), 10), " (", us(*low, 0), "..",
                   us(*high, 0), ")  ", us(row.moving_us, 10), "\n");
  }
  if (text.empty()) return text;
  return "what bringing gradients together adds to a step, in us: median of the rounds (lowest..highest), each the "
         "median step less that of steps without; and of that communication which backward did not hide, the mean on "
         "the rank that came last in each step and waited for none\n" +
         text;
}

Json json_of(const StepRow& row, const std::vector<StepRow>& rows) {
  Json ratios = Json::object();
  for (const char* const column : kColumns)
    if (const std::optional<Ratio> ratio = ratio_to(column, row, rows); ratio && !row.torch)
      ratios[column] = {{"median", ratio->middle}, {"low", ratio->low}, {"high", ratio->high}};
  Json parts = nullptr;
  if (row.parts)
    parts = {{"forward", row.parts->forward + row.parts->loss},
             {"backward", row.parts->backward},
             {"exposed", row.parts->scatter + row.parts->replicate + row.parts->gather + row.parts->communication},
             {"rest", row.parts->input + row.parts->update}};
  return {{"name", row.name},
          {"devices", row.devices},
          {"threads_per_device", row.threads_per_device},
          {"error", row.error},
          {"round_medians_us", row.rounds_us},
          {"fastest_us", row.fastest_us},
          {"slowest_us", row.slowest_us},
          {"startup_s", row.startup_s},
          {"parts_us", parts},
          {"communication_us", row.communication_us},
          {"moving_us", row.moving_us},
          {"synchronisation_us", row.synchronisation_us},
          {"times_as_fast_as", ratios}};
}

}  // namespace

void StepRow::add(double median_us, double fastest_step_us, double slowest_step_us) {
  fastest_us = rounds_us.empty() ? fastest_step_us : std::min(fastest_us, fastest_step_us);
  slowest_us = std::max(slowest_us, slowest_step_us);
  rounds_us.push_back(median_us);
}

void StepRow::add(const StepParts& round_parts, double round_communication_us, double round_moving_us) {
  const auto rounds = static_cast<double>(rounds_us.size());
  const auto mean = [rounds](double& all, double next) { all += (next - all) / rounds; };
  if (!parts) parts.emplace();
  for (const PartName& part : kStepParts) mean((*parts).*part.member, round_parts.*part.member);
  mean(communication_us, round_communication_us);
  mean(moving_us, round_moving_us);
}

std::optional<Ratio> times_as_fast(const StepRow& row, const StepRow& other) {
  if (!row.error.empty() || !other.error.empty()) return std::nullopt;
  const std::vector<double> ratios = ratios_of(other.rounds_us, row.rounds_us);
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
  text += " " + flush_left("mode", kNames) +
          " devices threads      median                   range    images/s   start s    forward   backward  "
          "communication   the rest\n";
  for (const StepRow& row : times.rows) text += row_text(row, options.batch);
  for (const std::string& note : times.notes) text += concat(" ", note, "\n");
  text +=
      " start s: from the start of the program to the end of the first step; communication: what backward does not "
      "hide\n";
  if (!times.torch.empty())
    text += concat(" torch is PyTorch ", times.torch,
                   " under --vs-torch; tuned: channels_last, and a malloc that keeps memory\n");
  if (!times.libtorch.empty())
    text += concat(" LibTorch is LibTorch ", times.libtorch,
                   " in C++, untuned; + duet: duet::torch::DistributedDataParallel; averaged: an all_reduce for each "
                   "parameter after backward\n");
  text += synchronisation_text(times.rows);
  return text + "ratios inside each round: median (lowest..highest)\n" + ratios_text(times.rows, !times.torch.empty());
}

std::string to_json(const BenchOptions& options, const StepTimes& times) {
  const Machine machine = this_machine();
  Json rows = Json::array();
  for (const StepRow& row : times.rows) rows.push_back(json_of(row, times.rows));
  const Json json = {{"duet", DUET_VERSION},
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
                     {"libtorch", times.libtorch.empty() ? Json(nullptr) : Json(times.libtorch)},
                     {"notes", times.notes},
                     {"rows", rows}};
  return json.dump(1) + "\n";
}

}  // namespace duet::cli
