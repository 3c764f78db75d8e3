#include "compare/losses.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {

Losses take_apart(const LossInputs& inputs) {
  const double ideal = inputs.single_us / inputs.devices;
  // Each stage begins where the one before it that was measured ends.
  double reached = ideal;
  const auto stage = [&](const std::optional<double>& measured) -> std::optional<double> {
    if (!measured) return std::nullopt;
    const double more = *measured - reached;
    reached = *measured;
    return more;
  };
  Losses losses{.step_us = inputs.step_us, .parts = {{"ideal", ideal}}};
  losses.parts.push_back({"smaller_batch", stage(inputs.small_batch_us)});
  losses.parts.push_back({"machine", stage(inputs.copies_us)});
  losses.parts.push_back({"uneven", inputs.waiting_us});
  losses.parts.push_back({"communication", inputs.communication_us});
  losses.parts.push_back({"wrapper", inputs.wrapper_us});
  const double explained = reached + inputs.waiting_us.value_or(0) + inputs.communication_us + inputs.wrapper_us;
  losses.parts.push_back({"unexplained", inputs.step_us - explained});
  return losses;
}

std::optional<LossInputs> loss_inputs(const Results& results, const Run& run) {
  const Run* const single = find_run(results, "single", 1);
  const Run* const copies = find_run(results, "copies", run.devices);
  const bool parallel = run.mode == "averaging" || run.mode == "dp" || run.mode == "ddp";
  if (!single || !run.ok || !parallel || run.devices < 2) return std::nullopt;
  const double share = ideal_share(run, *single);
  LossInputs inputs{
      .devices = run.devices, .single_us = single->step_us.sum() * share * run.devices, .step_us = run.step_us.sum()};
  if (inputs.single_us <= 0 || inputs.step_us <= 0) return std::nullopt;
  const std::int64_t rows = largest_shard(run.batch, run.devices);
  for (const BatchTime& time : results.batch_sweep)
    if (time.batch == rows) inputs.small_batch_us = time.step_us;
  if (rows == single->batch) inputs.small_batch_us = single->step_us.sum();
  if (copies && copies->step_us.sum() > 0) inputs.copies_us = copies->step_us.sum();
  const StepParts waiting = waiting_of(run);
  if (run.step_waiting_us) inputs.waiting_us = waiting.sum() * longest_over_mean_waiting(run);
  inputs.communication_us = run.step_us.communication - waiting.communication;
  // Copies read images and update parameters, too; single's share is in the ideal.
  const auto undivided = [](const StepParts& parts) { return parts.input + parts.update; };
  const double own = undivided(inputs.copies_us ? copies->step_us : single->step_us.scaled(share));
  inputs.wrapper_us = run.step_us.scatter + run.step_us.replicate + run.step_us.gather + undivided(run.step_us) - own;
  return inputs;
}

bool explained(const Run& run, const Losses& losses) {
  constexpr double kUnexplained = 0.1;  // of the loss
  constexpr std::size_t kFewestRounds = 5;
  const double lost = losses.step_us - losses.parts[0].us.value_or(0);
  return run.rounds_us.size() >= kFewestRounds && lost > 0 && std::fabs(losses.unexplained_us()) <= kUnexplained * lost;
}

std::optional<Interval> loss_interval(const Results& results, const Run& run, const std::string& part) {
  const Run* const single = find_run(results, "single", 1);
  const Run* const copies = find_run(results, "copies", run.devices);
  const std::optional<LossInputs> inputs = loss_inputs(results, run);
  if (!inputs) return std::nullopt;
  const bool split = !run.rounds_waiting_us.empty();
  const Run& other = copies ? *copies : *single;
  const double share = copies ? 1 : ideal_share(run, *single);
  const auto own = [](const StepParts& parts) { return parts.input + parts.update; };
  std::vector<double> us;
  for (const std::size_t i : common_rounds(run, other)) {
    if (i >= std::min({run.rounds_step_us.size(), single->rounds_us.size(), other.rounds_step_us.size()})) break;
    const StepParts& step = run.rounds_step_us[i];
    const StepParts waiting = split ? run.rounds_waiting_us.at(i) : StepParts{};
    if (part == "machine" && copies && inputs->small_batch_us)
      us.push_back(copies->rounds_us[i] - *inputs->small_batch_us * single->rounds_us[i] / single->step_us.sum());
    else if (part == "uneven" && split)
      us.push_back(waiting.sum() * longest_over_mean_waiting(run));
    else if (part == "communication")
      us.push_back(step.communication - waiting.communication);
    else if (part == "wrapper")
      us.push_back(step.scatter + step.replicate + step.gather + own(step) - share * own(other.rounds_step_us[i]));
  }
  return interval_of(us);
}

std::string loss_line(const std::string& title, const Losses& losses) {
  std::string text = concat(title, ": ", grouped(std::llround(losses.step_us)), " us ="), missing;
  for (const LossPart& part : losses.parts) {
    std::string name = part.name;
    std::replace(name.begin(), name.end(), '_', ' ');
    if (!part.us) {
      missing += (missing.empty() ? "" : ", ") + name;
      continue;
    }
    const std::string sign = part.name == losses.parts[0].name ? "" : *part.us < 0 ? " -" : " +";
    text += concat(sign, " ", grouped(std::llround(std::fabs(*part.us))), " ", name);
  }
  return text + (missing.empty() ? "" : "; not measured: " + missing);
}

std::vector<const Run*> runs_with_losses(const Results& results) {
  int devices = 0;
  for (const Run& run : results.runs)
    if (loss_inputs(results, run) && !oversubscribed(results, run)) devices = std::max(devices, run.devices);
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (run.devices == devices && devices > 1 && loss_inputs(results, run)) runs.push_back(&run);
  return runs;
}

}  // namespace duet::cli
