#include "compare/overhead.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lib/error.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr std::size_t kEnoughRounds = 5;

/// On as many devices, where they were timed.
const Run* timed_copies(const Results& results, int devices) {
  const Run* const copies = find_run(results, "copies", devices);
  return copies && copies->step_us.sum() > 0 ? copies : nullptr;
}

/// How much longer the rank or replica that waits longest does so than they do on average; 1 where that was not
/// measured. Where all take turns to be last, a step loses what they wait on average. Where one always is the last, it
/// loses what the others wait.
double longest_over_mean_waiting(const Run& run) {
  const double average = mean(run.rank_waiting_us);
  return average > 0 ? *std::max_element(run.rank_waiting_us.begin(), run.rank_waiting_us.end()) / average : 1;
}

/// What a device takes for itself: the mean of all, and the whole step of the fastest. What the others of a mode wait
/// for a device that is slow in copies, too, is counted as waiting.
struct OwnTime {
  StepParts mean;
  double fastest_us = 0;
};
OwnTime own_time(const Run& copies, const StepParts& slowest) {
  const std::vector<double>& ranks = copies.rank_step_us;
  if (ranks.empty()) return {slowest, slowest.sum()};
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  return {slowest.scaled(mean(ranks) / *most), slowest.sum() * *least / *most};
}

double compute_us(const StepParts& parts) { return parts.forward + parts.loss + parts.backward; }

/// Input and update beyond those of copies, without the part of them by which slower ranks make the others wait for
/// longer than ranks wait on average, which is `counted_us` in all.
double longer_input_and_update(const StepParts& step, const StepParts& own, const StepParts& waiting,
                               double counted_us) {
  const double longer = step.input + step.update - own.input - own.update;
  const double compute = compute_us(step) - compute_us(own) - compute_us(waiting);
  if (longer <= 0 || counted_us <= 0) return longer;
  return longer - counted_us * longer / (longer + std::max(0.0, compute));
}

/// What a device's part of the batch takes alone on one device, where `alone_us` is single's step divided.
std::optional<double> small_batch_us(const Results& results, const Run& run, const Run& single, double alone_us) {
  const std::int64_t rows = largest_shard(run.batch, run.devices, run.blocks);
  const double share = ideal_share(run, single);
  if (rows == single.batch) return alone_us / share;
  for (const BatchTime& time : results.batch_sweep)  // which has no rounds
    if (time.batch == rows) return time.step_us * alone_us / (single.step_us.sum() * share);
  return std::nullopt;
}

/// The step of a run, or of one of its rounds, which single and copies must have.
std::optional<Overhead> taken_apart(const Results& results, const Run& run, std::optional<std::size_t> round = {}) {
  const Run* const single = find_run(results, "single", 1);
  const Run* const copies = timed_copies(results, run.devices);
  const bool parallel = run.mode == "averaging" || run.mode == "dp" || run.mode == "ddp";
  if (!single || !run.ok || !parallel || run.devices < 2) return std::nullopt;
  const auto parts_of = [&](const Run& of) { return round ? of.rounds_step_us.at(*round) : of.step_us; };
  const StepParts step = parts_of(run), alone = parts_of(*single).scaled(ideal_share(run, *single));
  if (alone.sum() <= 0 || step.sum() <= 0) return std::nullopt;
  std::optional<StepParts> waiting;
  if (!round && run.step_waiting_us) waiting = waiting_of(run);
  if (round && *round < run.rounds_waiting_us.size()) waiting = run.rounds_waiting_us[*round];

  Overhead overhead{.step_us = step.sum(), .parts = {{"ideal", "ideal", alone.sum()}}};
  double reached = alone.sum();
  const auto add = [&](const char* name, const char* title, const std::optional<double>& us) {
    overhead.parts.push_back({name, title, us});
    reached += us.value_or(0);
  };
  // A part that ends at a measured time begins where the one before it ends.
  const auto add_until = [&](const char* name, const char* title, const std::optional<double>& us) {
    add(name, title, us ? std::optional(*us - reached) : std::nullopt);
  };
  const OwnTime own = copies ? own_time(*copies, parts_of(*copies)) : OwnTime{alone, alone.sum()};
  const double waiting_us = waiting ? waiting->sum() : 0, longest_us = waiting_us * longest_over_mean_waiting(run);
  add_until("smaller_batch", "smaller batch", small_batch_us(results, run, *single, alone.sum()));
  add_until("machine", "devices side by side",
            copies ? std::optional(waiting ? own.fastest_us : parts_of(*copies).sum()) : std::nullopt);
  add("uneven", "waiting for the last", waiting ? std::optional(longest_us) : std::nullopt);
  add("communication", "communication", step.communication - (waiting ? waiting->communication : 0));
  add("wrapper", "wrapper",
      step.scatter + step.replicate + step.gather +
          longer_input_and_update(step, own.mean, waiting.value_or(StepParts{}),
                                  longest_us - waiting_us - (own.mean.sum() - own.fastest_us)));
  add_until("unexplained", "unexplained", step.sum());
  return overhead;
}

}  // namespace

std::optional<Overhead> overhead_of(const Results& results, const Run& run) {
  std::optional<Overhead> overhead = taken_apart(results, run);
  if (!overhead) return overhead;
  const Run& single = *find_run(results, "single", 1);
  const Run* const copies = timed_copies(results, run.devices);
  const Run& other = copies ? *copies : single;
  for (const std::size_t i : common_rounds(run, other)) {
    if (i >= std::min({run.rounds_step_us.size(), single.rounds_step_us.size(), other.rounds_step_us.size()})) break;
    const std::optional<Overhead> round = taken_apart(results, run, i);
    for (std::size_t part = 2; round && part < round->parts.size(); ++part)  // a smaller batch has no rounds
      if (round->parts[part].us) overhead->parts[part].rounds_us.push_back(*round->parts[part].us);
  }
  return overhead;
}

std::optional<Interval> lost_of(const Results& results, const Run& run) {
  const Run* const single = find_run(results, "single", 1);
  if (!single) return std::nullopt;
  const double ideal = ideal_share(run, *single);
  return interval_of(of_each(common_rounds(run, *single),
                             [&](std::size_t i) { return run.rounds_us[i] - ideal * single->rounds_us[i]; }));
}

std::vector<OverheadPart> causes_of(const Results& results, const Run& run, const Overhead& overhead) {
  constexpr double kSmall = 0.05;  // share of the loss
  std::vector<OverheadPart> causes;
  const std::optional<Interval> lost = lost_of(results, run);
  if (load_of(results) || run.mostly_busy() || !run.on_cpu() || run.rounds_us.size() < kEnoughRounds || !lost ||
      lost->low <= 0)
    return causes;
  for (auto part = overhead.parts.begin() + 1; part + 1 != overhead.parts.end(); ++part) {
    OverheadPart cause = *part;
    const std::optional<Interval> interval = cause.interval();
    if (interval) cause.us = interval->middle;
    if (cause.us.value_or(0) >= kSmall * overhead.lost_us() &&
        (part->rounds_us.empty() || (interval && interval->low > 0)))
      causes.push_back(cause);
  }
  std::stable_sort(causes.begin(), causes.end(), [](const auto& a, const auto& b) { return *a.us > *b.us; });
  return causes;
}

bool explained(const Run& run, const Overhead& overhead) {
  constexpr double kUnexplained = 0.1;  // share of the loss
  return run.rounds_us.size() >= kEnoughRounds && overhead.lost_us() > 0 &&
         std::fabs(overhead.unexplained_us()) <= kUnexplained * overhead.lost_us();
}

std::string part_text(const Results& results, const Run& run, const OverheadPart& part) {
  const std::string name = part.name;
  const bool dp = run.mode == "dp";
  if (name == "smaller_batch")
    return concat("a batch of ", largest_shard(run.batch, run.devices, run.blocks), " costs more than its share of ",
                  run.batch);
  if (name == "machine") {
    const Run* const copies = find_run(results, "copies", run.devices);
    return concat("devices slow each other down, without exchange too",
                  copies && copies->speedup ? concat(" (copies ", fixed(*copies->speedup, 2), "x)") : "");
  }
  if (name == "uneven") return dp ? "waiting for the slower replica" : "waiting for the slower rank";
  if (name == "communication" && !dp && !run.step_waiting_us) return "waiting for all-reduces";
  if (name == "communication")
    return concat(gradients_text(results.parameters), " of ", run.mode == "averaging" ? "parameters" : "gradients",
                  " are moved and added");
  if (name == "wrapper") return dp ? "scatter, replicate, gather, input and update" : "input, update and the wrapper";
  return part.title;
}

std::vector<const Run*> runs_with_overhead(const Results& results) {
  if (load_of(results)) return {};
  int devices = 0;
  for (const Run& run : results.runs)
    if (overhead_of(results, run) && !oversubscribed(results, run)) devices = std::max(devices, run.devices);
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (run.devices == devices && devices > 1 && overhead_of(results, run)) runs.push_back(&run);
  return runs;
}

}  // namespace duet::cli
