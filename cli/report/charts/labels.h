// Where the names of curves stand: at their curves, on nothing that is drawn.
#pragma once

#include <string>
#include <vector>

#include "cli/report/svg.h"

namespace duet::cli {

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  bool holds(const Box& other) const {
    return left <= other.left && other.right <= right && top <= other.top && other.bottom <= bottom;
  }
};

/// A straight line of a drawing.
struct Segment {
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
};

/// Whether any point of the segment lies inside of the box.
bool crosses(const Segment& segment, const Box& box);

/// What a text of 12 px takes at most, from its baseline at (x, y); `anchor` as of Svg::text.
Box text_box(double x, double y, const std::string& text, const std::string& anchor);

/// Collects what is drawn, then puts names next to points of it.
class LabelPlacer {
 public:
  explicit LabelPlacer(Box frame) : frame_(frame) {}
  void avoid(const Segment& segment) { segments_.push_back(segment); }
  void avoid(const Box& box) { boxes_.push_back(box); }
  /// Writes the name near (x, y), in the free place that is closest to its right; with a leader line where that is not
  /// at the point itself. Call it once all else is drawn.
  void place(Svg& svg, double x, double y, const std::string& name, const std::string& css);

 private:
  bool is_free(const Box& box, const Segment& leader) const;

  Box frame_;
  std::vector<Segment> segments_, leaders_;
  std::vector<Box> boxes_, labels_;
};

}  // namespace duet::cli
