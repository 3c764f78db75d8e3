// Fits of the cost model's terms to measured times.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/cost_model/cost_model.h"

namespace duet::cli {

/// A fit, or nothing; `note` then says why, and of a fit what was clamped.
template <class T>
struct Fitted {
  std::optional<T> value{};
  std::string note{};
};

// Least squares of relative errors (weights 1/us^2): a term that matters at small batches counts as much as one that
// matters at large ones. Coefficients are not negative: what comes out below 0 is clamped to 0, the rest fitted again,
// and the note says so.

/// fixed + per sample, from whole steps of single at several batches, of which 3 must differ.
Fitted<StepCost> fit_step_cost(std::vector<TimePoint> points);

/// latency + bytes / rate, from calls of several sizes, of which 2 must differ.
Fitted<TransferCost> fit_transfer(const std::vector<TimePoint>& points);

/// fixed + per row, none of them negative, from what steps took beyond the other terms at 1 or 2 batches; of one batch
/// nothing is per row.
StepOverhead fit_overhead(const std::vector<TimePoint>& beyond);

/// The standard deviation of one device's steps as a share of their median, from the quartiles (their distance is 1.349
/// of it where times are normal), so that a few steps in which another program had the core do not count; not above 1.
/// 0 of fewer than 8 steps.
double fit_spread(const std::vector<double>& step_us);

/// When each bucket is ready, as the median share of backward's time, from traced steps: `ready_us` is from backward's
/// begin on, in the order of `bytes`. Empty without steps, or where one has other buckets.
struct BackwardTimes {
  double backward_us = 0;
  std::vector<double> ready_us{};
};
std::vector<GradientBucket> fit_buckets(const std::vector<double>& bytes, const std::vector<BackwardTimes>& steps);

}  // namespace duet::cli
