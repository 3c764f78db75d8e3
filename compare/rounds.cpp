#include "compare/rounds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>

#include "lib/random.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr std::uint64_t kOrderSeed = 17;
constexpr double kBurst = 0.1;                     // seconds, at least
constexpr int kBurstSteps = 20, kShortBurst = 5;   // steps a burst; the latter where the budget holds few rounds
constexpr int kMinRounds = 3, kBudgetRounds = 10;  // at least; and that the budget should hold
constexpr int kNarrowRounds = 8;                   // before intervals may end the rounds: below, they are rough
constexpr double kNarrow = 0.01;

class Rounds {
 public:
  Rounds(std::vector<RoundCell>& cells, const RoundLimits& limits, const RoundCalls& calls)
      : cells_(cells), limits_(limits), calls_(calls), order_(cells.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  RoundState run() {
    const double begin = calls_.now_s();
    double longest = 0;
    for (int done = 0; goes_on(done, calls_.now_s() - begin, longest); ++done) {
      const double round_begin = calls_.now_s();
      state_ = {.round = done + 1, .widest = widest()};
      round();
      longest = std::max(longest, calls_.now_s() - round_begin);
    }
    state_.widest = widest();
    return state_;
  }

 private:
  bool goes_on(int done, double spent_s, double longest_s) const {
    if (std::all_of(cells_.begin(), cells_.end(), [](const RoundCell& cell) { return cell.failed; })) return false;
    if (done == 0) return limits_.budget_s > 0;
    if (done < kMinRounds) return longest_s < limits_.budget_s;
    if (done >= kNarrowRounds && widest().value_or(1) <= kNarrow) return false;
    return spent_s + longest_s <= limits_.budget_s;
  }

  void round() {
    shuffle_.shuffle(std::span(order_));
    const double share = share_of_steps();
    for (const std::size_t i : order_) {
      RoundCell& cell = cells_[i];
      if (cell.failed) continue;
      calls_.show(state_);
      const int wanted = static_cast<int>(wanted_steps(cell) * share);
      const std::optional<double> us = calls_.burst(i, std::max(wanted, steps_of_burst(cell, 1, kShortBurst)));
      cell.failed = !us;
      if (!us) continue;
      cell.rounds_us.push_back(*us);
      cell.step_us = median(cell.rounds_us);
    }
  }

  /// The number of steps that take as long as a burst should, within these limits.
  static int steps_of_burst(const RoundCell& cell, int least, int most) {
    if (cell.step_us <= 0) return kShortBurst;  // to learn how long one takes
    return static_cast<int>(std::clamp<double>(std::ceil(kBurst * 1e6 / cell.step_us), least, most));
  }

  static int wanted_steps(const RoundCell& cell) { return steps_of_burst(cell, kBurstSteps, 1'000'000); }

  /// The share of the wanted steps with which the budget holds kBudgetRounds rounds.
  double share_of_steps() const {
    double seconds = 0;
    for (const RoundCell& cell : cells_)
      if (!cell.failed) seconds += wanted_steps(cell) * cell.step_us / 1e6;
    return std::min(1.0, limits_.budget_s / kBudgetRounds / std::max(seconds, 1e-9));
  }

  std::optional<double> widest() const {
    double widest = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i].failed || i == limits_.base || !cells_[i].decides) continue;
      const bool relative = limits_.base && !cells_[*limits_.base].failed;
      const std::optional<Interval> interval =
          relative ? ratio_interval(ratios_of(cells_[*limits_.base].rounds_us, cells_[i].rounds_us))
                   : interval_of(cells_[i].rounds_us);
      if (!interval) return std::nullopt;
      widest = std::max(widest, interval->half_width() / interval->middle);
    }
    return widest;
  }

  std::vector<RoundCell>& cells_;
  const RoundLimits& limits_;
  const RoundCalls& calls_;
  std::vector<std::size_t> order_;
  PythonRandom shuffle_{kOrderSeed};
  RoundState state_;
};

}  // namespace

RoundState run_rounds(std::vector<RoundCell>& cells, const RoundLimits& limits, const RoundCalls& calls) {
  return Rounds(cells, limits, calls).run();
}

}  // namespace duet::cli
