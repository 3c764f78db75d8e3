#include "cli/report/svg.h"

#include <cmath>
#include <utility>

#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

std::string n(double value) { return fixed(value, 1); }
std::string with_tip(const std::string& open, const std::string& name, const std::string& tip) {
  return tip.empty() ? open + "/>\n" : open + "><title>" + escaped(tip) + "</title></" + name + ">\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& css) {
  body_ += "<line class=\"" + css + "\" x1=\"" + n(x1) + "\" y1=\"" + n(y1) + "\" x2=\"" + n(x2) + "\" y2=\"" + n(y2) +
           "\"/>\n";
}

void Svg::path(const std::vector<std::pair<double, double>>& points, const std::string& css) {
  if (points.size() < 2) return;
  body_ += "<polyline class=\"" + css + "\" points=\"";
  for (const auto& [x, y] : points) body_ += n(x) + "," + n(y) + " ";
  body_ += "\"/>\n";
}

void Svg::rect(double x, double y, double w, double h, const std::string& css, const std::string& tip) {
  body_ += with_tip("<rect class=\"" + css + "\" x=\"" + n(x) + "\" y=\"" + n(y) + "\" width=\"" + n(w) +
                        "\" height=\"" + n(h) + "\"",
                    "rect", tip);
}

void Svg::dot(double x, double y, const std::string& css, const std::string& tip) {
  body_ += with_tip("<circle class=\"" + css + "\" cx=\"" + n(x) + "\" cy=\"" + n(y) + "\" r=\"4\"", "circle", tip);
}

void Svg::text(double x, double y, const std::string& text, const std::string& anchor, const std::string& css) {
  body_ += "<text class=\"" + css + "\" x=\"" + n(x) + "\" y=\"" + n(y) + "\" text-anchor=\"" + anchor + "\">" +
           escaped(text) + "</text>\n";
}

std::string Svg::str() const {
  return "<svg role=\"img\" viewBox=\"0 0 " + n(width_) + " " + n(height_) + "\" aria-label=\"" + escaped(title_) +
         "\">\n" + body_ + "</svg>\n";
}

std::vector<double> ticks(double top, int count) {
  if (!(top > 0) || !std::isfinite(top)) return {0, 1};
  const double rough = top / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  std::vector<double> out;
  for (int i = 0;; ++i) {
    out.push_back(i * step);
    if (out.back() >= top * 0.999) return out;
  }
}

}  // namespace duet::cli
