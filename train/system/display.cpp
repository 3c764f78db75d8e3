#include "train/system/display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/case_conv.hpp>
#include <boost/algorithm/string/replace.hpp>
#include <boost/algorithm/string/split.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <locale>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

constexpr int kBarWidth = 20;

template <class... Format>
std::string digits_of(double value, Format... format) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, format...).ptr};
}

std::string painted(const std::string& text, const char* code, TerminalStyle style) {
  return style.colour ? concat("\x1b[", code, "m", text, "\x1b[0m") : text;
}

}  // namespace

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  return digits_of(value, std::chars_format::fixed, digits);
}

std::string shortest(double value) { return digits_of(value); }

std::string seconds(double value) { return fixed(value, value < 10 ? (value < 1 ? 3 : 2) : value < 100 ? 1 : 0); }

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

std::string ascii(const std::string& text) {
  // With their surroundings in duet's texts: elsewhere they are of a user's path.
  constexpr const char* kSimilar[][2] = {{" ±", "+-"},       {" ·", " -"}, {"… ", "~ "}, {"…\n", "~\n"},
                                         {"…\x1b", "~\x1b"}, {" ▕", " ["}, {"█", "#"},   {"▏ ", "] "}};
  std::string out = text + "\n";
  for (const auto& [own, similar] : kSimilar) boost::algorithm::replace_all(out, own, similar);
  out.pop_back();
  return out;
}

bool takes_utf8(const char* lc_all, const char* lc_ctype, const char* lang) {
  for (const char* name : {lc_all, lc_ctype, lang}) {  // the first that is set and not empty counts
    if (name == nullptr || *name == '\0') continue;
    const std::string locale = boost::algorithm::to_lower_copy(std::string(name), std::locale::classic());
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

std::string for_locale(const std::string& text) {
  static const bool utf8 = takes_utf8(std::getenv("LC_ALL"), std::getenv("LC_CTYPE"), std::getenv("LANG"));
  return utf8 ? text : ascii(text);
}

std::string gradients_text(std::int64_t parameters) {
  const double kb = static_cast<double>(parameters) * 4 / 1e3;
  return kb < 100 ? fixed(kb, 0) + " kB" : fixed(kb / 1e3, 1) + " MB";
}

std::string network_text(const std::string& name, std::int64_t parameters) {
  return concat(name, ", ", grouped(parameters), " parameters (", gradients_text(parameters), " of gradients)");
}

TerminalStyle terminal_style(bool is_terminal, bool quiet, const char* no_color, const char* term) {
  const bool dumb = term == nullptr || std::string_view(term) == "dumb" || std::string_view(term).empty();
  if (!is_terminal || quiet || dumb) return {};
  return {.colour = no_color == nullptr || *no_color == '\0', .rewrite = true};
}

TerminalStyle terminal_style(std::FILE* stream, bool quiet) {
  return terminal_style(isatty(fileno(stream)) == 1, quiet, std::getenv("NO_COLOR"), std::getenv("TERM"));
}

int terminal_columns(std::FILE* stream, int otherwise) {
  winsize size{};
  return ::ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::string bold(const std::string& text, TerminalStyle style) { return painted(text, "1", style); }
std::string green(const std::string& text, TerminalStyle style) { return painted(text, "32", style); }
std::string red(const std::string& text, TerminalStyle style) { return painted(text, "31", style); }

std::string to_line(const Progress& p) {
  return concat("progress ", p.epoch, " ", p.epochs, " ", p.step, " ", p.steps, " ", fixed(p.loss, 6), " ",
                fixed(p.samples_per_s, 1), " ", fixed(p.left_s, 1), "\n");
}

bool from_line(const std::string& line, Progress& progress) {
  std::istringstream in(line);
  in.imbue(std::locale::classic());
  std::string word, loss;
  Progress p;
  if (!(in >> word >> p.epoch >> p.epochs >> p.step >> p.steps >> loss >> p.samples_per_s >> p.left_s) ||
      word != "progress")
    return false;
  p.loss = parse_number<double>(loss).value_or(std::nan(""));  // streams do not read "nan"
  progress = p;
  return true;
}

std::string progress_text(const std::string& what, const Progress& p, int columns, bool bar) {
  const double share = p.steps > 0 ? static_cast<double>(p.step) / static_cast<double>(p.steps) : 0;
  const int full = std::clamp(static_cast<int>(share * kBarWidth + 0.5), 0, kBarWidth);
  std::string drawn = " ▕";
  for (int i = 0; i < kBarWidth; ++i) drawn += i < full ? "█" : " ";
  const bool timed = p.samples_per_s > 0;
  std::array<std::string, 7> parts = {" " + what,
                                      bar ? drawn + "▏" : "",
                                      concat(" epoch ", p.epoch, "/", p.epochs),
                                      concat("  ", p.step, "/", p.steps),
                                      concat("  loss ", fixed(p.loss, 3)),
                                      timed ? concat("  ", fixed(p.samples_per_s / 1000, 1), "k samples/s") : "",
                                      timed ? concat("  ETA ", fixed(std::ceil(p.left_s), 0), " s") : ""};
  const auto joined = [&] { return std::accumulate(parts.begin(), parts.end(), std::string()); };
  for (const std::size_t dropped : {1U, 5U, 4U, 2U, 6U})
    if (width(joined()) > static_cast<std::size_t>(columns)) parts[dropped].clear();
  return cut(joined(), static_cast<std::size_t>(columns));
}

void ProgressLine::show(const std::string& what, const Progress& progress) {
  if (style_.rewrite) return show(progress_text(what, progress, terminal_columns(stream_, kAnyWidth)));
  const auto now = Clock::now();
  if (plain_every_ <= Clock::duration::zero() || now - last_plain_ < plain_every_) return;
  last_plain_ = now;
  std::fprintf(stream_, "%s\n", progress_text(what, progress, kAnyWidth, false).substr(1).c_str());
  std::fflush(stream_);
}

void ProgressLine::show(const std::string& text) {
  if (!style_.rewrite) return;
  const auto now = Clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  const auto columns = static_cast<std::size_t>(terminal_columns(stream_, kAnyWidth));
  std::fprintf(stream_, "\r\x1b[K%s", for_locale(cut(text, columns)).c_str());
  std::fflush(stream_);
}

void ProgressLine::clear() {
  if (!shown_) return;
  shown_ = false;
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

std::string cut(const std::string& text, std::size_t columns) {
  if (width(text) <= columns) return text;
  std::size_t bytes = 0;
  for (std::size_t shown = 0; shown + 1 < columns; ++shown) do
      ++bytes;
    while ((static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U);
  return text.substr(0, bytes) + "…";
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns, std::size_t indent) {
  std::vector<std::string> lines, words;
  std::string line;
  boost::split(words, text, [](char letter) { return letter == ' '; });  // all blanks stay: they may be a path's
  for (const std::string& word : words) {
    if (!line.empty() && indent + width(line) + 1 + width(word) > columns) {
      lines.push_back(std::string(indent, ' ') + line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) lines.push_back(std::string(indent, ' ') + line);
  return lines;
}

std::string wrapped_text(const std::string& text, int columns, int indent) {
  std::string out;
  for (const std::string& line : wrapped(text, static_cast<std::size_t>(columns), static_cast<std::size_t>(indent)))
    out += line + "\n";
  return out;
}

}  // namespace duet::cli
