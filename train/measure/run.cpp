#include "train/measure/run.h"

#include <algorithm>
#include <array>
#include <functional>

#include "lib/blocks.h"
#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

constexpr std::size_t kFewestRounds = 3;  // that have an interval

constexpr Rule kDevices{.least = 1, .most = kMaxDevices};
constexpr Rule kMode{
    .fits =
        [](const std::string& mode) {
          constexpr std::array kModes = {"single",
                                         "averaging",
                                         "dp",
                                         "ddp",
                                         "copies",
                                         "torch",
                                         "torch ddp",
                                         "torch tuned",
                                         "torch ddp tuned",
                                         "LibTorch",
                                         "LibTorch + duet",
                                         "LibTorch averaged",
                                         "torch ddp over duet"};
          return std::find(kModes.begin(), kModes.end(), mode) != kModes.end();
        },
    .expected = "single, averaging, dp, ddp or copies, or a row of PyTorch's: torch, torch ddp, LibTorch, ..."};
constexpr Rule kDevice{.fits = [](const std::string& device) { return device == "cpu" || device.starts_with("cuda"); },
                       .expected = "cpu or cuda"};

template <class Field>
StepParts median_parts(const std::vector<Run>& bursts, const Field& parts_of) {
  StepParts parts;
  for (const PartName& part : kStepParts)
    parts.*part.member =
        median(of_each(bursts, [&](const Run& burst) { return std::invoke(parts_of, burst).*part.member; }));
  return parts;
}

std::vector<double> medians_of_ranks(const std::vector<Run>& bursts, std::vector<double> Run::*of_ranks) {
  std::vector<double> medians;
  for (std::size_t rank = 0; rank < (bursts[0].*of_ranks).size(); ++rank)
    medians.push_back(median(of_each(bursts, [&](const Run& burst) { return (burst.*of_ranks).at(rank); })));
  return medians;
}

/// Waiting and moving of bursts that were traced, in place of those of the training.
void take_waiting(Run& run, const std::vector<Run>& bursts, double scale) {
  const auto fill = [&](auto number, std::vector<double>& interval) {
    const std::vector<double> values = of_each(bursts, [&](const Run& burst) { return (burst.*number).value_or(0); });
    run.*number = median(values);
    const std::optional<Interval> around = interval_of(values);
    interval = around ? std::vector<double>{around->low, around->high} : std::vector<double>();
  };
  fill(&Run::communication_waiting_us, run.waiting_interval_us);
  fill(&Run::communication_moving_us, run.moving_interval_us);
  run.step_waiting_us = median_parts(bursts, [](const Run& burst) { return *burst.step_waiting_us; }).scaled(scale);
  run.rank_waiting_us = medians_of_ranks(bursts, &Run::rank_waiting_us);
}

}  // namespace

void fields(auto& io, StepParts& parts) {
  for (const PartName& part : kStepParts) io(part.name, parts.*part.member);
}

void fields(auto& io, StepEvent& event) {
  io("lane", event.lane);
  io("name", event.name);
  io("begin_us", event.begin_us);
  io("end_us", event.end_us);
}

void fields(auto& io, LostRank& lost) {
  io("rank", lost.rank);
  io("step", lost.step);
  io("recovery_s", lost.recovery_s);
}

/// Other programs read these names: they do not change.
void fields(auto& io, Run& run) {
  io("mode", run.mode, kMode);
  io("device", run.device, kDevice);
  io("devices", run.devices, kDevices);
  io("physical_devices", run.physical_devices, kDevices);
  io("precision", run.precision);
  io("threads_per_device", run.threads_per_device, {.least = 1});
  io("ok", run.ok);
  io("error", run.error);
  io("startup_s", run.startup_s);
  io("epoch_s", run.epoch_s);
  io("samples_per_s", run.samples_per_s, kAmount);
  io("speedup", run.speedup, kAmount);
  io("efficiency", run.efficiency);
  io("waiting_share", run.waiting_share);
  io("communication_us", run.communication_us);
  io("parameters_sha256", run.parameters_sha256);
  io("first_differing_step", run.first_differing_step);
  io("step_us", run.step_us);
  io("median_step", run.median_step);
  io("train_loss", run.train_loss);
  io("test_accuracy", run.test_accuracy);
  io("peak_memory_mb", run.peak_memory_mb);
  io("device_memory_mb", run.device_memory_mb);
  io("moved_bytes_per_step", run.moved_bytes_per_step);
  io("graph", run.graph);
  io("workers", run.workers);
  io("backend", run.backend);
  io("communication_waiting_us", run.communication_waiting_us);
  io("communication_moving_us", run.communication_moving_us);
  io("waiting_interval_us", run.waiting_interval_us);
  io("moving_interval_us", run.moving_interval_us);
  io("step_waiting_us", run.step_waiting_us);
  io("rank_waiting_us", run.rank_waiting_us);
  io("eager_parts", run.eager_parts);
  io("execution_s", run.execution_s);
  io("rounds_us", run.rounds_us);
  io("rounds_step_us", run.rounds_step_us);
  io("rounds_waiting_us", run.rounds_waiting_us);
  io("rank_step_us", run.rank_step_us);
  io("speedup_low", run.speedup_low, kAmount);
  io("speedup_high", run.speedup_high, kAmount);
  io("ceiling_efficiency", run.ceiling_efficiency);
  io("cpu_share", run.cpu_share);
  io("other_programs_share", run.other_programs_share);
  io("rounds_other_programs", run.rounds_other_programs, {.later = true});
  io("synchronisation_us", run.synchronisation_us, {.later = true});
  io("batch", run.batch, kRows);
  io("per_device_statistics", run.per_device_statistics);
  io("library_sums", run.library_sums);
  io("added_uses", run.added_uses, {.later = true});
  io("blocks", run.blocks, {.least = 0, .later = true});
  io("lost_ranks", run.lost_ranks, {.later = true});
}

template void fields(JsonWriter&, Run&);
template void fields(JsonReader&, Run&);

std::string to_json(const Run& run) { return line_of(JsonWriter::json_of(run)) + "\n"; }

Run run_from_json(const std::string& text) { return read_json<Run>(text, "an object of a run's fields"); }

StepParts StepParts::scaled(double factor) const {
  StepParts scaled = *this;
  for (const PartName& part : kStepParts) scaled.*part.member *= factor;
  return scaled;
}

StepParts StepParts::scaled_to(double us) const { return sum() > 0 ? scaled(us / sum()) : *this; }

bool Run::busy(std::size_t round) const {
  constexpr double kBusy = 0.1;  // share of the cores
  return round < rounds_other_programs.size() && rounds_other_programs[round] > kBusy;
}

bool Run::disturbed(std::size_t round) const {
  std::size_t quiet = 0;
  for (std::size_t i = 0; i < rounds_other_programs.size(); ++i) quiet += !busy(i);
  return busy(round) && quiet >= kFewestRounds;
}

std::int64_t Run::disturbed_rounds() const {
  std::int64_t rounds = 0;
  for (std::size_t i = 0; i < rounds_other_programs.size(); ++i) rounds += disturbed(i);
  return rounds;
}

bool Run::mostly_busy() const {
  std::size_t rounds = 0;
  for (std::size_t i = 0; i < rounds_other_programs.size(); ++i) rounds += busy(i);
  return 2 * rounds > rounds_other_programs.size();
}

void Run::scale_times(double factor) {
  samples_per_s /= factor;
  step_us = step_us.scaled(factor);
  if (step_waiting_us) step_waiting_us = step_waiting_us->scaled(factor);
  communication_us *= factor;
  for (std::optional<double>* const us : {&communication_waiting_us, &communication_moving_us})
    if (*us) **us *= factor;
  for (std::vector<double>* const times :
       {&epoch_s, &waiting_interval_us, &moving_interval_us, &rank_waiting_us, &rank_step_us})
    for (double& time : *times) time *= factor;
}

Run with_rounds(Run run, const std::vector<Run>& all, std::int64_t images) {
  if (all.empty()) return run;
  const auto step_us = [](const Run& burst) { return burst.rounds_us.at(0); };
  run.rounds_us = of_each(all, step_us);
  if (all[0].other_programs_share)
    run.rounds_other_programs = of_each(all, [](const Run& burst) { return burst.other_programs_share.value_or(0); });
  std::vector<Run> bursts;  // that were not disturbed
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!run.disturbed(i)) bursts.push_back(all[i]);
  const auto rows = static_cast<double>(run.batch);
  const double middle = median(of_each(bursts, step_us));
  run.samples_per_s = rows / middle * 1e6;
  run.epoch_s.clear();
  for (const double us : of_each(bursts, step_us)) run.epoch_s.push_back(us / 1e6 * static_cast<double>(images) / rows);
  const StepParts parts = median_parts(bursts, &Run::step_us);
  run.step_us = parts.scaled_to(middle);
  run.rank_step_us = medians_of_ranks(bursts, &Run::rank_step_us);
  for (const auto number : {&Run::waiting_share, &Run::communication_us}) run.*number = median(of_each(bursts, number));
  const bool traced =
      std::all_of(all.begin(), all.end(), [](const Run& burst) { return burst.step_waiting_us.has_value(); });
  if (traced) take_waiting(run, bursts, parts.sum() > 0 ? middle / parts.sum() : 1);
  for (const Run& burst : all) {
    run.rounds_step_us.push_back(burst.step_us);
    if (traced) run.rounds_waiting_us.push_back(*burst.step_waiting_us);
    for (const double us : burst.synchronisation_us) run.synchronisation_us.push_back(us);
  }
  for (const auto share : {&Run::cpu_share, &Run::other_programs_share})
    if (all[0].*share) run.*share = mean(of_each(all, [&](const Run& burst) { return (burst.*share).value_or(0); }));
  return run;
}

Run with_parts(Run run, const std::vector<Run>& bursts) {
  if (bursts.empty()) return run;
  run.eager_parts = true;
  run.step_us = median_parts(bursts, &Run::step_us).scaled_to(run.step_us.sum());
  run.waiting_share = median(of_each(bursts, &Run::waiting_share));
  for (std::size_t i = 0; i < run.rounds_step_us.size(); ++i)
    run.rounds_step_us[i] = bursts[std::min(i, bursts.size() - 1)].step_us.scaled_to(run.rounds_us.at(i));
  return run;
}

std::vector<std::size_t> common_rounds(const Run& a, const Run& b) {
  std::vector<std::size_t> all, quiet;
  for (std::size_t i = 0; i < std::min(a.rounds_us.size(), b.rounds_us.size()); ++i) {
    all.push_back(i);
    if (!a.disturbed(i) && !b.disturbed(i)) quiet.push_back(i);
  }
  return quiet.size() < kFewestRounds ? all : quiet;
}

std::vector<double> speed_ratios(const Run& run, const Run& base) {
  const double rows = static_cast<double>(run.batch) / static_cast<double>(base.batch);
  return of_each(common_rounds(run, base), [&](std::size_t i) { return rows * base.rounds_us[i] / run.rounds_us[i]; });
}

double ideal_share(const Run& run, const Run& base) {
  const double rows = static_cast<double>(run.batch) / static_cast<double>(base.batch);
  return rows * base.devices / run.devices;
}

std::int64_t largest_shard(std::int64_t batch, int devices, int blocks) {
  if (blocks < devices) return (batch + devices - 1) / devices;
  std::int64_t largest = 0;
  for (int i = 0; i < devices; ++i)
    largest = std::max(largest, share_begin(i + 1, devices, batch, blocks) - share_begin(i, devices, batch, blocks));
  return largest;
}

StepParts waiting_of(const Run& run) {
  StepParts waiting;
  if (run.step_waiting_us)
    for (const PartName& part : kStepParts)
      waiting.*part.member = std::min((*run.step_waiting_us).*part.member, run.step_us.*part.member);
  return waiting;
}

std::string sharing(const Run& run) {
  if (run.on_cpu() || run.devices <= run.physical_devices) return "";
  return concat(run.devices, run.mode == "dp" ? " logical devices on " : " ranks on ", run.physical_devices,
                run.physical_devices == 1 ? " GPU" : " GPUs");
}

std::string execution_line(int devices, bool on_gpus, double execution_s) {
  return concat("Total execution time for ", devices, on_gpus ? " GPU" : " CPU device",
                devices == 1 ? ": " : "s: ", fixed(execution_s, 1), " seconds");
}

}  // namespace duet::cli
