#include "cli/report/charts/labels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

namespace duet::cli {
namespace {

constexpr double kAscent = 11, kDescent = 4;  // of a text of 12 px
constexpr double kClear = 3;                  // between a label and lines

/// Where a label can stand around a point, the best first: offsets of the nearest edge of its box, in units of the
/// distance.
constexpr std::pair<double, double> kDirections[] = {{1, 0},  {1, -0.7}, {1, 0.7}, {1, -1.5}, {1, 1.5},
                                                     {0, -1}, {0, 1},    {-1, 0},  {-1, -1},  {-1, 1}};

/// The box of a label whose edge or corner is at this offset from the point.
Box box_at(double x, double y, double dx, double dy, double width) {
  constexpr double kHeight = kAscent + kDescent;
  const double left = dx > 0 ? x + dx : dx < 0 ? x + dx - width : x - width / 2;
  const double top = dx != 0 ? y + dy - kHeight / 2 : dy > 0 ? y + dy : y + dy - kHeight;
  return {left, top, left + width, top + kHeight};
}

Segment leader_to(const Box& box, double x, double y) {
  return {x, y, std::clamp(x, box.left, box.right), std::clamp(y, box.top, box.bottom)};
}

}  // namespace

bool crosses(const Segment& segment, const Box& box) {
  double from = 0, to = 1;
  const auto clip = [&](double start, double delta, double low, double high) {
    if (delta == 0) return low < start && start < high;
    const double a = (low - start) / delta, b = (high - start) / delta;
    from = std::max(from, std::min(a, b));
    to = std::min(to, std::max(a, b));
    return from < to;
  };
  return clip(segment.x1, segment.x2 - segment.x1, box.left, box.right) &&
         clip(segment.y1, segment.y2 - segment.y1, box.top, box.bottom);
}

Box text_box(double x, double y, const std::string& text, const std::string& anchor) {
  const double width = text_width(text);
  const double left = anchor == "end" ? x - width : anchor == "middle" ? x - width / 2 : x;
  return {left, y - kAscent, left + width, y + kDescent};
}

bool LabelPlacer::is_free(const Box& box, const Segment& leader) const {
  const Box wide = {box.left - kClear, box.top - kClear, box.right + kClear, box.bottom + kClear};
  const auto covers = [&](const Box& other) { return box.overlaps(other); };
  const auto under = [&](const Segment& line) { return crosses(line, wide); };
  // A thin leader line may cross what is drawn, but no name.
  return frame_.holds(box) && std::none_of(boxes_.begin(), boxes_.end(), covers) &&
         std::none_of(segments_.begin(), segments_.end(), under) &&
         std::none_of(leaders_.begin(), leaders_.end(), under) &&
         std::none_of(labels_.begin(), labels_.end(),
                      [&](const Box& other) { return covers(other) || crosses(leader, other); });
}

void LabelPlacer::place(Svg& svg, double x, double y, const std::string& name, const std::string& css) {
  constexpr double kNearest = 10, kFarthest = 400, kAtPoint = 16;
  const double width = text_width(name);
  for (double distance = kNearest; distance < kFarthest; distance += 4) {
    for (const auto& [dx, dy] : kDirections) {
      // Far to the side a label would lose its point: it moves up and down.
      const double side = std::min(distance, 2 * kAtPoint) * dx;
      const Box box = box_at(x, y, side, distance * dy, width);
      const Segment line = leader_to(box, x, y);
      const double length = std::hypot(line.x2 - line.x1, line.y2 - line.y1);
      // It begins beside the point, which is itself an obstacle.
      const double clear = length > kNearest ? kNearest / length : 1;
      const Segment leader = {x + (line.x2 - x) * clear, y + (line.y2 - y) * clear, line.x2, line.y2};
      if (!is_free(box, leader)) continue;
      if (length > kAtPoint) {
        svg.line(leader.x1, leader.y1, leader.x2, leader.y2, "leader");
        leaders_.push_back(leader);
      }
      svg.text(box.left, box.top + kAscent, name, "start", css);
      return labels_.push_back(box);
    }
  }
  // A picture full of lines: the name stands at the right edge, below the last one that does.
  double top = frame_.top;
  for (const Box& box : labels_)
    if (box.right > frame_.right - width) top = std::max(top, box.bottom);
  svg.text(frame_.right - width, top + kAscent, name, "start", css);
  labels_.push_back({frame_.right - width, top, frame_.right, top + kAscent + kDescent});
}

}  // namespace duet::cli
