// What the pictures with a row for each run, device or rank share.
#pragma once

#include <string>
#include <vector>

#include "cli/report/results.h"
#include "cli/report/svg.h"

namespace duet::cli {

inline constexpr double kChartWidth = 760;
inline constexpr double kBar = 20, kPitch = 28;

/// "ddp, gloo 2", "single".
std::string row_label(const Results& results, const Run& run);

/// The room that the longest of these takes, with a margin.
double room_for(const std::vector<std::string>& texts);

/// "waiting for the last rank", or replica.
std::string waiting_text(const Run& run);

/// Rows of bars over an axis in microseconds, with the colours of a step's parts above it.
class TimeBars {
 public:
  /// `rows`: the height of all. `names` and `right`: the room beside the bars.
  TimeBars(const std::string& title, double rows, double names, double right, double longest, const std::string& unit);
  double first_row() const { return legend_; }
  double left() const { return left_; }
  double x(double us) const { return left_ + us * scale_; }
  /// A part of the step, or kWaiting; `what` is shown at the pointer, with the time.
  void bar(double row, double begin_us, double end_us, const std::string& part, const std::string& what);
  /// Left of a row.
  void name(double row, const std::string& text);

  Svg svg;

 private:
  double legend_, left_, scale_ = 1;
};

}  // namespace duet::cli
