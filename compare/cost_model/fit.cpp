#include "compare/cost_model/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

/// fixed + slope * at.
struct LinearFit {
  double fixed = 0, slope = 0;
  double worst = 0;  // largest relative error
  std::string note{};
};

bool positive(double value) { return std::isfinite(value) && value > 0; }

/// Why there is nothing to fit; empty where there is.
std::string why_not(const std::vector<TimePoint>& points, std::size_t least, const char* what) {
  std::set<double> places;
  for (const TimePoint& point : points) {
    if (!positive(point.at) || !positive(point.us))
      return concat("a time of ", point.us, " us at ", point.at, " ", what, ", expected positive numbers");
    places.insert(point.at);
  }
  if (places.size() >= least) return "";
  return concat("times at ", places.size(), " different ", what, ", expected ", least, " or more");
}

/// Fits a line by least squares as fit.h says; the names of its coefficients are for the note.
LinearFit fitted_line(const std::vector<TimePoint>& points, const char* fixed_name, const char* slope_name) {
  double ones = 0, at = 0, squares = 0, us = 0, at_us = 0;  // sums of the normal equations, each divided by us^2
  for (const TimePoint& point : points) {
    const double weight = 1 / point.us, place = point.at * weight;
    ones += weight * weight;
    at += weight * place;
    squares += place * place;
    us += weight;
    at_us += place;
  }
  const double determinant = ones * squares - at * at;
  LinearFit line{.fixed = (us * squares - at_us * at) / determinant, .slope = (ones * at_us - at * us) / determinant};
  const auto clamped = [](const char* name, double value) {
    return concat(name, " came out as ", shortest(value), " and was clamped to 0");
  };
  if (line.fixed < 0)
    line = {.fixed = 0, .slope = at_us / squares, .note = clamped(fixed_name, line.fixed)};
  else if (line.slope < 0)
    line = {.fixed = us / ones, .slope = 0, .note = clamped(slope_name, line.slope)};
  for (const TimePoint& point : points)
    line.worst = std::max(line.worst, std::fabs((line.fixed + line.slope * point.at) / point.us - 1));
  return line;
}

}  // namespace

Fitted<StepCost> fit_step_cost(std::vector<TimePoint> points) {
  if (const std::string why = why_not(points, 3, "batches"); !why.empty()) return {.note = why};
  const LinearFit line = fitted_line(points, "fixed_us", "per_sample_us");
  std::sort(points.begin(), points.end(), [](const TimePoint& a, const TimePoint& b) { return a.at < b.at; });
  return {.value = StepCost{.fixed_us = line.fixed,
                            .per_sample_us = line.slope,
                            .measured = std::move(points),
                            .worst_error_share = line.worst},
          .note = line.note};
}

Fitted<TransferCost> fit_transfer(const std::vector<TimePoint>& points) {
  if (const std::string why = why_not(points, 2, "sizes"); !why.empty()) return {.note = why};
  const LinearFit line = fitted_line(points, "latency_us", "us per byte");
  const double rate = line.slope > 0 ? 1 / line.slope : std::numeric_limits<double>::infinity();
  return {.value = TransferCost{.latency_us = line.fixed, .bytes_per_us = rate}, .note = line.note};
}

StepOverhead fit_overhead(const std::vector<TimePoint>& beyond) {
  double sum_us = 0;
  for (const TimePoint& point : beyond) sum_us += point.us;
  const double mean_us = beyond.empty() ? 0 : std::max(0.0, sum_us / static_cast<double>(beyond.size()));
  if (beyond.size() != 2 || beyond[0].at == beyond[1].at) return {.fixed_us = mean_us};
  const double slope = (beyond[1].us - beyond[0].us) / (beyond[1].at - beyond[0].at);
  const double fixed_us = beyond[0].us - slope * beyond[0].at;
  if (slope <= 0) return {.fixed_us = mean_us};
  if (fixed_us >= 0) return {.fixed_us = fixed_us, .per_sample_us = slope};
  return {.per_sample_us = std::max(0.0, sum_us / (beyond[0].at + beyond[1].at))};
}

double fit_spread(const std::vector<double>& step_us) {
  constexpr std::size_t kEnough = 8;
  if (step_us.size() < kEnough || !std::all_of(step_us.begin(), step_us.end(), positive)) return 0;
  std::vector<double> sorted = step_us;
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  };
  return std::min(1.0, (quantile(0.75) - quantile(0.25)) / 1.349 / quantile(0.5));
}

std::vector<GradientBucket> fit_buckets(const std::vector<double>& bytes, const std::vector<BackwardTimes>& steps) {
  std::vector<GradientBucket> buckets;
  for (std::size_t i = 0; i < bytes.size() && !steps.empty(); ++i) {
    std::vector<double> shares;
    for (const BackwardTimes& step : steps) {
      if (step.ready_us.size() != bytes.size() || !positive(step.backward_us)) return {};
      shares.push_back(step.ready_us[i] / step.backward_us);
    }
    buckets.push_back({.bytes = bytes[i], .ready_share = std::clamp(median(shares), 0.0, 1.0)});
  }
  return buckets;
}

}  // namespace duet::cli
