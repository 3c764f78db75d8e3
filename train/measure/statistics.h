// Statistics of numbers that were measured in several rounds.
#pragma once

#include <functional>
#include <iterator>
#include <optional>
#include <type_traits>
#include <vector>

namespace duet::cli {

/// Returns a field, or what a function returns, of each item.
template <class Items, class Field>
auto of_each(const Items& items, const Field& field) {
  std::vector<std::remove_cvref_t<std::invoke_result_t<const Field&, decltype(*std::begin(items))>>> values;
  for (const auto& item : items) values.push_back(std::invoke(field, item));
  return values;
}

/// Median (mean of the middle two); 0 for an empty list.
double median(std::vector<double> values);

/// 0 for an empty list.
double mean(const std::vector<double>& values);

/// A median and its 95 % interval.
struct Interval {
  double middle = 0, low = 0, high = 0;

  /// The larger distance from the middle to an end.
  double half_width() const { return middle - low > high - middle ? middle - low : high - middle; }
  bool excludes(double value) const { return value < low || value > high; }
};

/// Interval of independent measurements of one number: from 8 on by the percentile bootstrap of their median, with a
/// fixed seed; for 3 to 7, too few for that, by Student's t. None for fewer, or where one is not finite. Never narrower
/// than a thousandth of the middle to each side.
std::optional<Interval> interval_of(const std::vector<double>& values);

/// Half the 95 % interval of the mean of values that follow one another in time, from the means of ten blocks of them;
/// null for fewer than twenty.
std::optional<double> half_interval(const std::vector<double>& values);

/// How many times as fast a step was in each round, `base_us` over `us`; rounds that only one of them has do not count.
std::vector<double> ratios_of(const std::vector<double>& base_us, const std::vector<double>& us);

/// Interval of ratios, computed on their logarithms: it lies above 0, and inverse ratios have the inverse interval.
/// Empty also if a ratio is not above 0.
std::optional<Interval> ratio_interval(const std::vector<double>& ratios);

/// How many times the median of `a` is that of `b`, of measurements that were made apart, in no common rounds. The
/// intervals of both medians' logarithms, as ratio_interval() has them, give that of the difference by MOVER (Zou and
/// Donner 2008). Empty as there, for either of the two.
std::optional<Interval> ratio_of_medians(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace duet::cli
