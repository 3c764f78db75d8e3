// SVG as text, without a library.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace duet::cli {

/// `text` with &, <, > and quotes made safe for HTML and SVG.
std::string escaped(const std::string& text);

/// The width of a text of 12 px in a wide font.
double text_width(const std::string& text);

/// Collects the elements of one picture. Colours are CSS classes of the page, so that light, dark and print differ
/// there.
class Svg {
 public:
  Svg(double width, double height, const std::string& title) : width_(width), height_(height), title_(title) {}
  void line(double x1, double y1, double x2, double y2, const std::string& css);
  void path(const std::vector<std::pair<double, double>>& points, const std::string& css);
  void rect(double x, double y, double w, double h, const std::string& css, const std::string& tip);
  void dot(double x, double y, const std::string& css, const std::string& tip);
  /// `anchor` is start, middle or end.
  void text(double x, double y, const std::string& text, const std::string& anchor, const std::string& css = "label");
  std::string str() const;

 private:
  double width_, height_;
  std::string title_, body_;
};

/// Round numbers from 0 to at least `top`, about `count` of them.
std::vector<double> ticks(double top, int count);

}  // namespace duet::cli
