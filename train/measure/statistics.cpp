#include "train/measure/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "lib/random.h"

namespace duet::cli {
namespace {

constexpr std::uint64_t kSeed = 20'23;
constexpr int kResamples = 2000;
constexpr double kOutside = 0.025;  // share of the resamples that lies outside at each end
constexpr double kNarrowest = 1e-3;
// 97.5 % quantiles of Student's t for 3 to 7 measurements.
constexpr std::array kStudent = {4.303, 3.182, 2.776, 2.571, 2.447};
constexpr std::size_t kFewest = 3, kFewestResampled = kFewest + kStudent.size();

Interval by_student(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  const double half = kStudent[values.size() - kFewest] * std::sqrt(squares / (count - 1) / count);
  const double middle = median(values);
  return {middle, std::min(middle, centre - half), std::max(middle, centre + half)};
}

Interval by_bootstrap(const std::vector<double>& values) {
  Philox draws(kSeed);
  std::vector<double> sample(values.size()), medians;
  medians.reserve(kResamples);
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : sample) value = values[draws.below(static_cast<std::uint32_t>(values.size()))];
    medians.push_back(median(sample));
  }
  std::sort(medians.begin(), medians.end());
  const auto outside = static_cast<std::size_t>(kOutside * kResamples);
  return {median(values), medians[outside], medians[kResamples - 1 - outside]};
}

/// Computes interval_of() without its least width.
std::optional<Interval> around(const std::vector<double>& values) {
  const bool finite = std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (values.size() < kFewest || !finite) return std::nullopt;
  return values.size() < kFewestResampled ? by_student(values) : by_bootstrap(values);
}

std::vector<double> logarithms_of(const std::vector<double>& values) {
  std::vector<double> logarithms;
  for (const double value : values) logarithms.push_back(std::log(value));  // not finite unless it is above 0
  return logarithms;
}

std::optional<Interval> widened(const std::optional<Interval>& found, double middle) {
  if (!found) return std::nullopt;
  const double least = kNarrowest * std::fabs(middle);
  return Interval{middle, std::min(found->low, middle - least), std::max(found->high, middle + least)};
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<Interval> interval_of(const std::vector<double>& values) {
  return widened(around(values), median(values));
}

std::optional<double> half_interval(const std::vector<double>& values) {
  constexpr std::size_t kGroups = 10;
  constexpr double kQuantile = 2.262;  // 97.5 % of Student's t with 9 degrees of freedom
  if (values.size() < 2 * kGroups) return std::nullopt;
  std::vector<double> blocks;
  for (std::size_t b = 0; b < kGroups; ++b) {
    const auto begin = static_cast<std::ptrdiff_t>(values.size() * b / kGroups);
    const auto end = static_cast<std::ptrdiff_t>(values.size() * (b + 1) / kGroups);
    blocks.push_back(mean({values.begin() + begin, values.begin() + end}));
  }
  double squares = 0;
  for (const double block : blocks) squares += std::pow(block - mean(blocks), 2);
  return kQuantile * std::sqrt(squares / (kGroups - 1) / kGroups);
}

std::vector<double> ratios_of(const std::vector<double>& base_us, const std::vector<double>& us) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(base_us.size(), us.size()); ++i) ratios.push_back(base_us[i] / us[i]);
  return ratios;
}

std::optional<Interval> ratio_interval(const std::vector<double>& ratios) {
  std::optional<Interval> found = around(logarithms_of(ratios));
  if (found) *found = {found->middle, std::exp(found->low), std::exp(found->high)};
  return widened(found, median(ratios));
}

std::optional<Interval> ratio_of_medians(const std::vector<double>& a, const std::vector<double>& b) {
  const std::optional<Interval> of_a = around(logarithms_of(a)), of_b = around(logarithms_of(b));
  if (!of_a || !of_b) return std::nullopt;
  const double ratio = median(a) / median(b);
  const double below = std::hypot(of_a->middle - of_a->low, of_b->high - of_b->middle);
  const double above = std::hypot(of_a->high - of_a->middle, of_b->middle - of_b->low);
  return widened(Interval{ratio, ratio * std::exp(-below), ratio * std::exp(above)}, ratio);
}

}  // namespace duet::cli
