// Intervals as text.
#pragma once

#include <string>

#include "measure/statistics.h"

namespace duet::cli {

/// "1.79x ±0.02"; "1.65x (0.60..4.63)" where the sides differ by more than a tenth and a unit of the last digit.
std::string times_text(const Interval& interval);
/// "1,217 us ±692", or "1,217 us (525..1,402)", likewise.
std::string us_text(const Interval& interval);
/// "0.98x..1.05x".
std::string times_range(const Interval& interval);
/// "(525..1,402)".
std::string us_range(double low, double high);

}  // namespace duet::cli
