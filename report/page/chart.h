// Pictures as data: report.js draws them with Chart.js.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "measure/statistics.h"

namespace duet::cli {

/// One value. Of bars, `at` is the row, and the bar runs from `low` to `high`; else `at` is the place on the x axis,
/// the point lies at `value` and its error bar, if any, runs from `low` to `high`.
struct ChartPoint {
  double at = 0, value = 0, low = 0, high = 0;
  std::string tip;        // shown while the mouse is over it
  bool computed = false;  // not measured: lines to it are dashed
};

/// The legend shows and hides each.
struct ChartSeries {
  std::string name, colour;  // a colour of report.css without its dashes: "dp", "communication"
  std::string shape;         // "bar", "mark" (a point in a row of bars), "line" or "dashed"
  std::vector<ChartPoint> points{};

  void add(double at, const Interval& value, const std::string& tip) {
    points.push_back({at, value.middle, value.low, value.high, tip});
  }
  void add(double at, double value, const std::string& tip) { add(at, {value, value, value}, tip); }
};

struct Chart {
  std::string id, title, unit;
  std::vector<std::string> rows{};  // of horizontal bars; none: lines over x
  bool side_by_side = false;        // bars of several series in one row do not cover each other
  bool log_x = false, log_y = false;
  std::vector<std::pair<double, std::string>> marks{};  // on the x axis of lines; none: round numbers
  std::vector<ChartSeries> series{};
  std::string caption{};  // what stands under it

  /// The series of this name, a new one where there is none.
  ChartSeries& series_of(const std::string& name, const std::string& colour, const std::string& shape);
  ChartSeries& bar(const std::string& name) { return series_of(name, name, "bar"); }
  /// A new row; its number.
  double add_row(const std::string& label);
  bool empty() const;
};

/// JSON for report.js; numbers that are not finite are null.
std::string to_json(const std::vector<Chart>& charts);

}  // namespace duet::cli
