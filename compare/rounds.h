// Rounds: bursts of training steps of several cells, one after the other, so that what slows the machine down slows all
// of them. Without processes: what runs a burst is the caller's.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "lib/monotonic.h"

namespace duet::cli {

struct RoundCell {
  double step_us = 0;               // about; 0: not known yet
  std::vector<double> rounds_us{};  // the median step of each round; fewer than of others once it has failed
  bool failed = false;
  bool decides = true;  // whether rounds go on until its interval is narrow
};

struct RoundLimits {
  double budget_s = 45;               // seconds for all rounds
  std::optional<std::size_t> base{};  // the cell to which the others' ratios count; none: their times count
};

struct RoundState {
  int round = 1;                 // that runs, from 1 on
  std::optional<double> widest;  // half of the widest interval, as a share of its middle; none: a cell has none yet
};

struct RoundCalls {
  /// Runs one burst and returns its median step in us; none: the cell has failed and is left out from now on.
  std::function<std::optional<double>(std::size_t cell, int steps)> burst;
  /// Before every burst.
  std::function<void(const RoundState&)> show = [](const RoundState&) {};
  /// Seconds.
  std::function<double()> now_s = [] { return static_cast<double>(monotonic_ns()) / 1e9; };
};

/// Runs rounds, each in an order of its own drawn with a fixed seed. A burst has as many steps as take 0.1 s, and at
/// least 20 where the budget allows. Ends when every interval is within 1 %, when the next round would exceed the
/// budget (but not before 3 rounds, unless one alone exceeds it), or when all have failed. Returns how it ended; what a
/// burst throws leaves the cells as they were.
RoundState run_rounds(std::vector<RoundCell>& cells, const RoundLimits& limits, const RoundCalls& calls);

}  // namespace duet::cli
