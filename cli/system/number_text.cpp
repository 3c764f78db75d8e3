#include "cli/system/number_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/error.h"

namespace duet::cli {
namespace {

template <class... Format>
std::string digits_of(double value, Format... format) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, format...).ptr};
}

}  // namespace

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  return digits_of(value, std::chars_format::fixed, digits);
}

std::string shortest(double value) { return digits_of(value); }

std::string seconds(double value) { return fixed(value, value < 10 ? (value < 1 ? 3 : 2) : value < 100 ? 1 : 0); }

std::string listed(const std::vector<std::string>& items, const char* last) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += i + 1 == items.size() ? concat(" ", last, " ") : ", ";
    out += items[i];
  }
  return out;
}

std::string python_float(double value) {
  if (!std::isfinite(value)) return fixed(value, 0);
  const double size = std::fabs(value);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  std::string out = digits_of(value, exponent ? std::chars_format::scientific : std::chars_format::fixed);
  if (!exponent && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string flush_left(const std::string& text, std::size_t column) {
  return text + std::string(column - std::min(column, width(text)), ' ');
}

std::string flush_right(const std::string& text, std::size_t column) {
  return std::string(column - std::min(column, width(text)), ' ') + text;
}

std::string network_text(const std::string& name, std::int64_t parameters) {
  return concat(name, ", ", grouped(parameters), " parameters (", fixed(static_cast<double>(parameters) * 4 / 1e6, 1),
                " MB of gradients)");
}

}  // namespace duet::cli
