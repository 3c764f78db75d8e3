// A picture as SVG, for documents: rows of horizontal bars with their marks, as report.js draws them.
#include <algorithm>
#include <cmath>
#include <string>

#include "compare/report/page/page.h"
#include "lib/error.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr double kPlot = 550, kRight = 20, kRow = 26, kBelow = 56, kLetter = 7.5, kLine = 18;

/// The colour of the light page.
std::string colour_of(const std::string& name) {
  const std::string css = page_file("report.css"), key = concat("--", name, ": ");
  const std::size_t at = css.find(key);
  return at == std::string::npos ? "#1c1c1a" : css.substr(at + key.size(), 7);
}

/// 1, 2 or 5 times a power of ten: at most eight of them in `range`.
double tick_of(double range) {
  const double least = range / 8, power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

/// Values along the x axis, which begins right of the rows' labels and ends kRight before the picture does.
struct Scale {
  double low = 0, high = 0, left = 100;

  explicit Scale(const Chart& chart) {
    for (const std::string& row : chart.rows) left = std::max(left, 20 + kLetter * static_cast<double>(width(row)));
    for (const ChartSeries& series : chart.series)
      for (const ChartPoint& point : series.points) {
        low = std::min({low, point.low, point.value});
        high = std::max({high, point.high, point.value});
      }
    if (high <= low) high = low + 1;
  }
  double at(double value) const { return left + (value - low) / (high - low) * kPlot; }
};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return concat("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" text-anchor=\"", anchor, "\">", escaped(text),
                "</text>\n");
}

std::string rectangle(double x, double y, double width, double height, const std::string& colour,
                      const std::string& tip) {
  return concat("<rect x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" width=\"", fixed(width, 1), "\" height=\"",
                fixed(height, 1), "\" fill=\"", colour, "\">", tip.empty() ? "" : "<title>" + escaped(tip) + "</title>",
                "</rect>\n");
}

std::string points_of(const Chart& chart, const Scale& scale, double top) {
  std::string out;
  double bars = 0, bar = 0;
  for (const ChartSeries& series : chart.series) bars += chart.side_by_side && series.shape == "bar" ? 1 : 0;
  for (const ChartSeries& series : chart.series) {
    const bool mark = series.shape == "mark";
    for (const ChartPoint& point : series.points) {
      const double share = chart.side_by_side ? 18 / bars : 18, y = top + point.at * kRow + 4 + bar * share;
      const double x = scale.at(mark ? point.value : point.low), end = mark ? x : scale.at(point.high);
      out += rectangle(x - (mark ? 1.5 : 0), mark ? y - 2 : y, std::max(3.0, end - x), mark ? 22 : share,
                       colour_of(series.colour), point.tip);
    }
    bar += chart.side_by_side && !mark ? 1 : 0;
  }
  return out;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  require<DataError>(!chart.rows.empty() && !chart.empty(), chart.title, ": there are no bars to draw");
  const Scale scale(chart);
  const double right = scale.left + kPlot + kRight;
  std::string legend;
  double x = scale.left, y = 36;
  for (const ChartSeries& series : chart.series) {
    const double wide = 34 + kLetter * static_cast<double>(width(series.name));
    if (x > scale.left && x + wide > right) {
      x = scale.left;
      y += kLine;
    }
    legend += rectangle(x, y, 12, 12, colour_of(series.colour), "") + text_at(x + 16, y + 11, "start", series.name);
    x += wide;
  }
  const double top = y + 28, bottom = top + static_cast<double>(chart.rows.size()) * kRow;
  const auto caption = wrapped(chart.caption, static_cast<std::size_t>((right - 24) / kLetter), 0);
  std::string out = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 ", fixed(right, 0),
                           " ", fixed(bottom + kBelow + kLine * static_cast<double>(caption.size()), 0),
                           "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#1c1c1a\">\n<title>",
                           escaped(chart.title), "</title>\n<desc>", escaped(alternative_text(chart)),
                           "</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                           text_at(12, 22, "start", chart.title), legend);
  const double tick = tick_of(scale.high - scale.low);
  for (double value = std::ceil(scale.low / tick) * tick; value <= scale.high; value += tick) {
    out += rectangle(scale.at(value), top, 1, bottom - top, "#e3e2dd", "");
    out += text_at(scale.at(value), bottom + 16, "middle", shortest(std::round(value * 1e6) / 1e6 + 0.0));  // no -0
  }
  for (std::size_t row = 0; row < chart.rows.size(); ++row)
    out += text_at(scale.left - 8, top + (static_cast<double>(row) + 0.65) * kRow, "end", chart.rows[row]);
  out += points_of(chart, scale, top) + text_at(scale.left, bottom + 36, "start", chart.unit);
  for (std::size_t line = 0; line < caption.size(); ++line)
    out += text_at(12, bottom + kBelow + kLine * static_cast<double>(line), "start", caption[line]);
  return out + "</svg>\n";
}

}  // namespace duet::cli
