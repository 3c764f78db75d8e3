#include "cli/report/svg.h"

#include <cmath>

#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

/// ` x1="12.5"`.
std::string at(const char* attribute, double value) { return concat(" ", attribute, "=\"", fixed(value, 1), "\""); }

/// The end of an element `name`.
std::string with_tip(const char* name, const std::string& tip) {
  return tip.empty() ? "/>\n" : concat("><title>", escaped(tip), "</title></", name, ">\n");
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
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

double text_width(const std::string& text) { return 7.4 * static_cast<double>(width(text)); }

void Svg::line(double x1, double y1, double x2, double y2, const std::string& css) {
  body_ += concat("<line class=\"", css, "\"", at("x1", x1), at("y1", y1), at("x2", x2), at("y2", y2), "/>\n");
}

void Svg::path(const std::vector<std::pair<double, double>>& points, const std::string& css) {
  if (points.size() < 2) return;
  body_ += "<polyline class=\"" + css + "\" points=\"";
  for (const auto& [x, y] : points) body_ += fixed(x, 1) + "," + fixed(y, 1) + " ";
  body_ += "\"/>\n";
}

void Svg::rect(double x, double y, double w, double h, const std::string& css, const std::string& tip) {
  body_ += concat("<rect class=\"", css, "\"", at("x", x), at("y", y), at("width", w), at("height", h),
                  with_tip("rect", tip));
}

void Svg::dot(double x, double y, const std::string& css, const std::string& tip) {
  body_ += concat("<circle class=\"", css, "\"", at("cx", x), at("cy", y), " r=\"4\"", with_tip("circle", tip));
}

void Svg::text(double x, double y, const std::string& text, const std::string& anchor, const std::string& css) {
  body_ += concat("<text class=\"", css, "\"", at("x", x), at("y", y), " text-anchor=\"", anchor, "\">", escaped(text),
                  "</text>\n");
}

std::string Svg::str() const {
  return concat("<svg role=\"img\" viewBox=\"0 0 ", fixed(width_, 1), " ", fixed(height_, 1), "\" aria-label=\"",
                escaped(title_), "\">\n", body_, "</svg>\n");
}

std::vector<double> ticks(double top, int count) {
  if (!(top > 0) || !std::isfinite(top)) return {0, 1};
  const double rough = top / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough * 0.999) step = factor * power;
  std::vector<double> out = {0};
  for (int i = 1; out.back() < top * 0.999; ++i) out.push_back(i * step);
  return out;
}

}  // namespace duet::cli
