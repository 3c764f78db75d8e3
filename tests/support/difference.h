// How far numbers are from those expected. std::max(error, std::abs(a - b)) would lose a NaN: every comparison of many
// numbers with a tolerance goes through here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace duet_test {

/// The largest |got[i] - expected[i]|. Infinite where lengths differ or a number of either side is not finite.
template <class Got, class Expected>
double largest_difference(const Got& got, const Expected& expected) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (got.size() != expected.size()) return kInfinite;
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double a = static_cast<double>(got[i]), b = static_cast<double>(expected[i]);
    if (!std::isfinite(a) || !std::isfinite(b)) return kInfinite;
    largest = std::max(largest, std::abs(a - b));
  }
  return largest;
}

/// The largest difference, divided by the largest |expected[i]|, or by 1 if all are zero.
template <class Got, class Expected>
double relative_difference(const Got& got, const Expected& expected) {
  const double difference = largest_difference(got, expected);
  double largest = 0;  // where a NaN could be lost here, the difference is infinite
  for (const auto value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest > 0 && std::isfinite(largest) ? difference / largest : difference;
}

}  // namespace duet_test
