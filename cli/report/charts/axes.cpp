#include "cli/report/charts/axes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

constexpr double kWidth = 760, kLeft = 70, kRight = 150, kTop = 30, kBottom = 46;

}  // namespace

Axes::Axes(const std::string& title, double height, double largest, const std::string& unit)
    : svg_(kWidth, height, title), height_(height), labels_({kLeft + 2, 2, kWidth - 2, height - kBottom - 2}) {
  const std::vector<double> marks = ticks(largest, 5);
  top_ = marks.back();
  for (const double mark : marks) {
    svg_.line(kLeft, y(mark), kWidth - kRight, y(mark), "grid");
    svg_.text(kLeft - 8, y(mark) + 4, shortest(std::round(mark * 1e6) / 1e6), "end");
  }
  svg_.text(kLeft - 8, kTop - 16, unit, "end");
}

double Axes::y(double value) const { return kTop + (height_ - kTop - kBottom) * (1 - value / top_); }

double Axes::x(double share, double margin) const {
  return kLeft + margin + (kWidth - kRight - kLeft - 2 * margin) * share;
}

void Axes::mark_x(const std::vector<std::pair<double, std::string>>& marks, const std::string& unit) {
  double last = -kWidth;
  for (const auto& [x, text] : marks) {
    const Box box = text_box(x, height_ - kBottom + 20, text, "middle");
    if (box.left < last + 6) continue;
    svg_.text(x, height_ - kBottom + 20, text, "middle");
    last = box.right;
  }
  if (!unit.empty()) svg_.text(std::max(last + 6, kWidth - kRight + 12), height_ - kBottom + 20, unit, "start");
}

void Axes::curve(const Points& points, const std::string& css) {
  svg_.path(points, css);
  for (std::size_t i = 1; i < points.size(); ++i)
    labels_.avoid(Segment{points[i - 1].first, points[i - 1].second, points[i].first, points[i].second});
}

void Axes::dot(double x, double y_at, const std::string& css, const std::string& tip) {
  svg_.dot(x, y_at, css, tip);
  labels_.avoid(Box{x - 5, y_at - 5, x + 5, y_at + 5});
}

void Axes::range(double x, double from, double to, const std::string& css) {
  svg_.line(x, from, x, to, css);
  labels_.avoid(Box{x - 4, std::min(from, to), x + 4, std::max(from, to)});
}

void Axes::name(const std::pair<double, double>& end, const std::string& text, const std::string& css) {
  labels_.place(svg_, end.first, end.second, text, css);
}

}  // namespace duet::cli
