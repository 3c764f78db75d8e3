#include "report/interval_text.h"

#include <algorithm>
#include <cmath>

#include "cli/system/number_text.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr double kLopsided = 0.1;  // by which an interval's sides differ, as a share of the longer
constexpr double kHundredth = 0.01;

/// Whether "±", the longer side of the two, says where both ends are, in numbers of this last digit.
bool even_sides(const Interval& interval, double last_digit) {
  const double below = interval.middle - interval.low, above = interval.high - interval.middle;
  return std::fabs(above - below) <= std::max(last_digit, kLopsided * std::max(below, above));
}

}  // namespace

std::string times_text(const Interval& interval) {
  const std::string middle = fixed(interval.middle, 2) + "x";
  if (!even_sides(interval, kHundredth))
    return concat(middle, " (", fixed(interval.low, 2), "..", fixed(interval.high, 2), ")");
  return concat(middle, " ±", fixed(std::max(kHundredth, interval.half_width()), 2));
}

std::string us_text(const Interval& interval) {
  const std::string middle = grouped(std::llround(interval.middle)) + " us ";
  if (!even_sides(interval, 1)) return middle + us_range(interval.low, interval.high);
  return concat(middle, "±", grouped(std::llround(interval.half_width())));
}

std::string times_range(const Interval& interval) {
  return concat(fixed(interval.low, 2), "x..", fixed(interval.high, 2), "x");
}

std::string us_range(double low, double high) {
  return concat("(", grouped(std::llround(low)), "..", grouped(std::llround(high)), ")");
}

}  // namespace duet::cli
