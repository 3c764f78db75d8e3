// A picture with a value axis and curves that have names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/report/charts/labels.h"
#include "cli/report/svg.h"

namespace duet::cli {

using Points = std::vector<std::pair<double, double>>;

/// The value axis is on the left, from 0 to at least `largest`.
class Axes {
 public:
  Axes(const std::string& title, double height, double largest, const std::string& unit);

  double y(double value) const;
  /// From 0, the left end, to 1, the right one; `margin` stays free at both.
  double x(double share, double margin = 0) const;

  /// Marks under the axis, some of them left out where all would not fit; right of them what they count.
  void mark_x(const std::vector<std::pair<double, std::string>>& marks, const std::string& unit = "");
  void curve(const Points& points, const std::string& css);
  void dot(double x, double y_at, const std::string& css, const std::string& tip);
  void range(double x, double from, double to, const std::string& css);
  /// Once all else is drawn.
  void name(const std::pair<double, double>& end, const std::string& text, const std::string& css);

  std::string str() const { return svg_.str(); }

 private:
  Svg svg_;
  double height_, top_ = 1;
  LabelPlacer labels_;
};

}  // namespace duet::cli
