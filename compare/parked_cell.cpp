#include "compare/parked_cell.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);

std::vector<std::string> with(std::vector<std::string> arguments, const char* option, const std::string& value) {
  arguments.insert(arguments.end(), {option, value});
  return arguments;
}

/// The share of `threads` cores that other programs had: at most what this cell did not get, which holds its own waits
/// too, and at most what it was ready to run for, which holds waits of its threads for each other too.
double share_of_others(const std::vector<RankBurst>& ranks, double wall_s, double threads) {
  double used = 0, delayed = 0;
  for (const RankBurst& rank : ranks) {
    used += rank.used_s;
    delayed += rank.delayed_s;
  }
  const double most = wall_s * threads;
  return std::clamp(std::min(delayed, most - used) / most, 0.0, 1.0);
}

}  // namespace

ParkedCell::ParkedCell(std::vector<std::string> arguments, const std::string& files, int ranks)
    : control_(files + ".bursts", ranks),
      child_(kThisProgram, with(std::move(arguments), "--bursts", control_.path()), files + ".log") {}

bool ParkedCell::wait(const std::function<void()>& poll) {
  while (!control_.parked()) {
    if (noted_signal() != 0) throw Interrupted{noted_signal()};
    if (const std::optional<ChildEnd>& end = child_.poll()) {
      error_ = end->ok ? "its processes ended before they were asked to" : end->reason;
      return false;
    }
    poll();
    control_.wait_parked(kPoll);
  }
  return true;
}

bool ParkedCell::run(int steps) {
  if (const std::optional<ChildEnd>& end = child_.poll()) {  // while it was parked
    error_ = concat("while it was parked: ", end->reason);
    return false;
  }
  control_.begin(steps);
  if (wait([] {})) return true;
  error_ = concat("while it was timed: ", error_);
  return false;
}

std::optional<CollectiveTimes> ParkedCell::collectives(int passes) {
  if (!run(passes)) return std::nullopt;
  return collective_times_from_json(control_.text());
}

std::optional<Burst> ParkedCell::burst(int steps, double threads) {
  if (!run(steps)) return std::nullopt;
  const std::vector<RankBurst> ranks = control_.bursts();
  Burst burst{.run = run_from_json(control_.text())};
  double slowest_us = 0, wall_s = 0, used_s = 0;
  for (const RankBurst& rank : ranks) {
    burst.run.rank_step_us.push_back(rank.median_us);
    slowest_us = std::max(slowest_us, rank.median_us);
    wall_s = std::max(wall_s, rank.wall_s);
    used_s += rank.used_s;
    burst.spread_share += rank.spread_share / static_cast<double>(ranks.size());
    burst.fastest_us = burst.fastest_us > 0 ? std::min(burst.fastest_us, rank.fastest_us) : rank.fastest_us;
    burst.slowest_us = std::max(burst.slowest_us, rank.slowest_us);
  }
  burst.run.rounds_us = {slowest_us};
  if (burst.run.step_waiting_us)
    burst.run.step_waiting_us = burst.run.step_waiting_us->scaled(slowest_us / burst.run.step_us.sum());
  burst.run.step_us = burst.run.step_us.scaled_to(slowest_us);
  burst.run.rounds_step_us = {burst.run.step_us};
  if (threads > 0) {
    burst.run.cpu_share = used_s / (wall_s * threads);
    burst.run.other_programs_share = share_of_others(ranks, wall_s, threads);
  }
  return burst;
}

void ParkedCell::leave() {
  if (control_.parked()) control_.leave();
}

}  // namespace duet::cli
