#include "compare/overhead.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cli/system/display.h"
#include "lib/error.h"

namespace duet::cli {

Overhead take_apart(const OverheadInputs& inputs) {
  const double ideal = inputs.single_us / inputs.devices;
  // Each stage begins where the one before it that was measured ends.
  double reached = ideal;
  const auto stage = [&](const std::optional<double>& measured) -> std::optional<double> {
    if (!measured) return std::nullopt;
    const double more = *measured - reached;
    reached = *measured;
    return more;
  };
  Overhead overhead{.step_us = inputs.step_us, .parts = {{"ideal", "ideal", ideal}}};
  overhead.parts.push_back({"smaller_batch", "smaller batch", stage(inputs.small_batch_us)});
  overhead.parts.push_back({"machine", "devices side by side", stage(inputs.copies_us)});
  overhead.parts.push_back({"uneven", "waiting for the last", inputs.waiting_us});
  overhead.parts.push_back({"communication", "communication", inputs.communication_us});
  overhead.parts.push_back({"wrapper", "wrapper", inputs.wrapper_us});
  const double explained = reached + inputs.waiting_us.value_or(0) + inputs.communication_us + inputs.wrapper_us;
  overhead.parts.push_back({"unexplained", "unexplained", inputs.step_us - explained});
  return overhead;
}

std::string part_text(const Results& results, const Run& run, const OverheadPart& part) {
  const std::string name = part.name;
  const bool dp = run.mode == "dp";
  if (name == "smaller_batch")
    return concat("a batch of ", largest_shard(run.batch, run.devices), " costs more than its share of ", run.batch);
  if (name == "machine") {
    const Run* const copies = find_run(results, "copies", run.devices);
    return concat("devices slow each other down, without exchange too",
                  copies && copies->speedup ? concat(" (copies ", fixed(*copies->speedup, 2), "x)") : "");
  }
  if (name == "uneven") return dp ? "waiting for the slower replica" : "waiting for the slower rank";
  if (name == "communication" && !dp && !run.step_waiting_us) return "waiting for all-reduces";
  if (name == "communication")
    return concat(fixed(static_cast<double>(results.parameters) * 4 / 1e6, 1), " MB of ",
                  run.mode == "averaging" ? "parameters" : "gradients", " are moved and added");
  if (name == "wrapper") return dp ? "scatter, replicate, gather, input and update" : "input, update and the wrapper";
  return part.title;
}

std::optional<OverheadInputs> overhead_inputs(const Results& results, const Run& run,
                                              std::optional<std::size_t> round) {
  const Run* const single = find_run(results, "single", 1);
  const Run* const copies = find_run(results, "copies", run.devices);
  const bool parallel = run.mode == "averaging" || run.mode == "dp" || run.mode == "ddp";
  if (!single || !run.ok || !parallel || run.devices < 2) return std::nullopt;
  const auto parts_of = [&](const Run& of) { return round ? of.rounds_step_us.at(*round) : of.step_us; };
  const double share = ideal_share(run, *single);
  const StepParts step = parts_of(run), alone = parts_of(*single).scaled(share);
  StepParts own = alone, waiting = waiting_of(run);  // own: what copies or single take for themselves
  OverheadInputs inputs{.devices = run.devices, .single_us = alone.sum() * run.devices, .step_us = step.sum()};
  if (inputs.single_us <= 0 || inputs.step_us <= 0) return std::nullopt;
  const std::int64_t rows = largest_shard(run.batch, run.devices);
  for (const BatchTime& time : results.batch_sweep)  // which has no rounds
    if (time.batch == rows) inputs.small_batch_us = time.step_us * alone.sum() / (single->step_us.sum() * share);
  if (rows == single->batch) inputs.small_batch_us = parts_of(*single).sum();
  if (copies && copies->step_us.sum() > 0) {
    own = parts_of(*copies);
    inputs.copies_us = own.sum();
  }
  if (round) waiting = run.rounds_waiting_us.empty() ? StepParts{} : run.rounds_waiting_us.at(*round);
  if (round ? !run.rounds_waiting_us.empty() : run.step_waiting_us.has_value())
    inputs.waiting_us = waiting.sum() * longest_over_mean_waiting(run);
  inputs.communication_us = step.communication - waiting.communication;
  inputs.wrapper_us = step.scatter + step.replicate + step.gather + step.input + step.update - own.input - own.update;
  return inputs;
}

std::optional<Overhead> overhead_of(const Results& results, const Run& run) {
  const std::optional<OverheadInputs> inputs = overhead_inputs(results, run);
  if (!inputs) return std::nullopt;
  Overhead overhead = take_apart(*inputs);
  const Run& single = *find_run(results, "single", 1);
  const Run& other = inputs->copies_us ? *find_run(results, "copies", run.devices) : single;
  for (const std::size_t i : common_rounds(run, other)) {
    if (i >= std::min({run.rounds_step_us.size(), single.rounds_step_us.size(), other.rounds_step_us.size()})) break;
    const std::optional<OverheadInputs> round = overhead_inputs(results, run, i);
    const Overhead parts = take_apart(round.value_or(OverheadInputs{}));
    for (std::size_t part = 2; round && part < parts.parts.size(); ++part)  // a smaller batch has no rounds
      if (parts.parts[part].us) overhead.parts[part].rounds_us.push_back(*parts.parts[part].us);
  }
  return overhead;
}

bool explained(const Run& run, const Overhead& overhead) {
  constexpr double kUnexplained = 0.1;  // of the loss
  constexpr std::size_t kFewestRounds = 5;
  return run.rounds_us.size() >= kFewestRounds && overhead.lost_us() > 0 &&
         std::fabs(overhead.unexplained_us()) <= kUnexplained * overhead.lost_us();
}

std::vector<const Run*> runs_with_overhead(const Results& results) {
  int devices = 0;
  for (const Run& run : results.runs)
    if (overhead_inputs(results, run) && !oversubscribed(results, run)) devices = std::max(devices, run.devices);
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (run.devices == devices && devices > 1 && overhead_inputs(results, run)) runs.push_back(&run);
  return runs;
}

}  // namespace duet::cli
