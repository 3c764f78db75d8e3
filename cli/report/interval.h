// How sure a number is that was measured in several rounds.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace duet::cli {

/// A median and its 95 % interval.
struct Interval {
  double middle = 0, low = 0, high = 0;

  /// The larger distance from the middle to an end.
  double half_width() const { return middle - low > high - middle ? middle - low : high - middle; }
  bool excludes(double value) const { return value < low || value > high; }
  bool operator==(const Interval&) const = default;
};

/// Of independent measurements of the same number: from 8 on by the percentile bootstrap of their median, with a fixed
/// seed; of 3 to 7, too few for that, by Student's t. None of fewer, or where one is not finite. Never narrower than a
/// thousandth of the middle to each side.
std::optional<Interval> interval_of(const std::vector<double>& values);

/// How many times as fast a step was in each round, `base_us` over `us`; rounds that only one of them has do not count.
std::vector<double> ratios_of(const std::vector<double>& base_us, const std::vector<double>& us);

/// Interval of ratios, computed on their logarithms: it lies above 0, and inverse ratios have the inverse interval.
/// Empty also if a ratio is not above 0.
std::optional<Interval> ratio_interval(const std::vector<double>& ratios);

/// "1.79x ±0.02"; "1.65x (0.60..4.63)" where the sides differ by more than a tenth and a unit of the last digit.
std::string times_text(const Interval& interval);
/// "1,217 us ±692", or "1,217 us (525..1,402)", likewise.
std::string us_text(const Interval& interval);
/// "0.98x..1.05x".
std::string times_range(const Interval& interval);
/// "(525..1,402)".
std::string us_range(double low, double high);

}  // namespace duet::cli
