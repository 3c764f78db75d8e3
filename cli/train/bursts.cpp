#include "cli/train/bursts.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/system/burst_block.h"
#include "cli/system/cpu_use.h"
#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "cli/train/over_ranks.h"
#include "cli/train/trainer.h"
#include "cli/train/training_loop.h"
#include "lib/autograd/check_finite.h"
#include "lib/device.h"
#include "lib/monotonic.h"
#include "lib/tensor.h"
#include "measure/run.h"
#include "measure/statistics.h"
#include "model/fit.h"

namespace duet::cli {
namespace {

// Caches and clock rates are those of another cell when a burst begins. The first step after these is not timed,
// either, and is enough where steps are so long that a burst has few of them.
constexpr std::int64_t kWarmUp = 1, kFewSteps = 5;

class Bursts {
 public:
  Bursts(const TrainOptions& options, Setup& setup, const RankTeam& team)
      : options_(options), setup_(setup), team_(team), port_(options.bursts, team.rank) {}

  void serve() {
    while (const int steps = next()) burst(steps);
  }

 private:
  bool reports_process() const { return options_.workers == "process" || team_.rank == 0; }
  /// Parks this rank without the memory of its activations: the processes of all cells are there at the same time.
  int next() {
    for (const Device device : setup_.devices) allocator(device).empty_cache();
    return port_.next();
  }

  bool communicates() const { return options_.mode != Mode::copies; }

  /// Trains until `enough()` holds after a step, over as many epochs as that takes.
  template <class Enough>
  void train_until(StepClock& clock, const Enough& enough) {
    const std::int64_t steps = setup_.loader->steps();
    std::int64_t before = 0;
    bool ended = false;
    while (!ended) {
      clock.begin_epoch(steps, 0);
      train_epoch(setup_, graph_steps(options_, steps), clock, [&] {
        ended = enough(before + clock.epoch_step());
        return !ended;
      });
      before += clock.epoch_step();
    }
  }

  void burst(std::int64_t steps) {
    if (communicates() && reports_process()) start_trace(options_);  // of all ranks by the end of the warm-up
    if (steps >= kFewSteps) {
      StepClock warm = clock();
      train_until(warm, [](std::int64_t done) { return done >= kWarmUp; });
    }
    StepClock timed = clock();
    CpuUse use;
    std::int64_t begin_ns = 0;
    train_until(timed, [&](std::int64_t done) {
      if (begin_ns == 0 && done > 0) {
        if (reports_process()) use = cpu_use();
        begin_ns = monotonic_ns();
      }
      return done > steps;
    });
    const double wall_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    if (reports_process()) use = cpu_use() - use;
    report(timed, wall_s, use);
    // Until the last has ended its steps: the others would leave it the machine.
    if (options_.mode == Mode::copies && !port_.all_reported()) {
      StepClock more = clock();
      train_until(more, [&](std::int64_t) { return port_.all_reported(); });
    }
  }

  void report(const StepClock& clock, double wall_s, const CpuUse& use) {
    const std::vector<double> steps(clock.steps_us().begin(), clock.steps_us().end());
    const auto [fastest, slowest] = std::minmax_element(steps.begin(), steps.end());
    Run run;
    run.devices = options_.devices;
    clock.fill(run);
    if (communicates()) average_over_ranks(run, team_);
    if (communicates() && traces(options_)) gather_trace(run, options_, team_);
    run.median_step.clear();  // that of the training is shown
    if (team_.rank == 0) port_.report(to_json(run));
    port_.report({.wall_s = wall_s,
                  .used_s = use.used_s,
                  .delayed_s = use.delayed_s,
                  .median_us = median(steps),
                  .fastest_us = *fastest,
                  .slowest_us = *slowest,
                  .spread_share = fit_spread(steps)});
  }

  StepClock clock() const { return {monotonic_ns(), setup_.times, setup_.devices.at(0)}; }

  const TrainOptions& options_;
  Setup& setup_;
  const RankTeam& team_;
  BurstPort port_;
};

}  // namespace

void serve_bursts(const TrainOptions& options, Setup& setup, const RankTeam& team) {
  end_by_signals();
  const CheckFinite check_finite(options.check_finite);
  Bursts(options, setup, team).serve();
}

}  // namespace duet::cli
