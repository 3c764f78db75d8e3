// Text for people: numbers and lists, independent of the locale; the terminal's columns and colours, and whether it
// takes rewritten lines; and the progress line.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lib/base/text.h"
#include "lib/monotonic.h"

namespace duet::cli {

/// Said of a run whose only step is the first, which is not timed.
inline constexpr const char* kNothingToTime = "one step an epoch: nothing to time";

/// 1234.5678, 2 digits -> "1234.57".
std::string fixed(double value, int digits);
/// Shortest text that reads back as the same number.
std::string shortest(double value);
/// Seconds with three significant digits: "0.184", "5.87", "124".
std::string seconds(double value);
/// Number of characters (code points) of UTF-8 text, for columns.
std::size_t width(const std::string& text);
/// Text at one side of a column of so many characters; longer text stays whole.
std::string flush_left(const std::string& text, std::size_t column);
std::string flush_right(const std::string& text, std::size_t column);

/// Replaces the characters that duet itself prints by similar ones of ASCII. The text keeps its width, and the user's
/// own words, such as paths, their bytes.
std::string ascii(const std::string& text);
/// Whether a locale of these values of LC_ALL, LC_CTYPE and LANG, each of which may be null, has UTF-8.
bool takes_utf8(const char* lc_all, const char* lc_ctype, const char* lang);
/// Returns the text, or its ascii() if the locale in this process's environment has no UTF-8.
std::string for_locale(const std::string& text);

/// Describes a network: "resnet18, 11,181,642 parameters (44.7 MB of gradients)".
std::string network_text(const std::string& name, std::int64_t parameters);
/// "1.7 MB": the gradients of so many parameters.
std::string gradients_text(std::int64_t parameters);

struct TerminalStyle {
  bool colour = false;   // escape sequences
  bool rewrite = false;  // a progress line may be rewritten in place
  bool operator==(const TerminalStyle&) const = default;
};

/// Plain for --quiet, a pipe or TERM=dumb; NO_COLOR (set and not empty) takes the colours only.
TerminalStyle terminal_style(bool is_terminal, bool quiet, const char* no_color, const char* term);
/// Style for an open stream, with NO_COLOR and TERM from this process's environment.
TerminalStyle terminal_style(std::FILE* stream, bool quiet);

/// Columns of the terminal that the stream goes to; `otherwise` where it is none, or does not say.
int terminal_columns(std::FILE* stream, int otherwise);

std::string bold(const std::string& text, TerminalStyle style);
std::string green(const std::string& text, TerminalStyle style);
std::string red(const std::string& text, TerminalStyle style);

/// Text of at most so many columns; an ellipsis is in place of what is cut.
std::string cut(const std::string& text, std::size_t columns);
/// Lines of whole words, with an indent before each; a word that is wider than a line has one of its own.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns, std::size_t indent);
/// The same lines in one text, each with its end.
std::string wrapped_text(const std::string& text, int columns, int indent = 0);

/// Where a training stands.
struct Progress {
  int epoch = 0;  // from 1
  int epochs = 1;
  std::int64_t step = 0, steps = 0;  // steps of the epoch: done, and in all
  double loss = 0;
  double samples_per_s = 0;
  double left_s = 0;  // until the end of the training
};
/// One line of text and back; what the file of `duet train --progress` holds. False when `line` is no progress.
std::string to_line(const Progress& progress);
bool from_line(const std::string& line, Progress& progress);

inline constexpr int kAnyWidth = 1 << 20;  // columns of what is no terminal
/// " ddp 2 ▕████    ▏ epoch 1/1  312/469  loss 0.31  48.9k samples/s  ETA 3 s", without a bar and then without other
/// parts if the columns are too few.
std::string progress_text(const std::string& what, const Progress& progress, int columns = kAnyWidth, bool bar = true);

inline constexpr std::chrono::seconds kPlainProgress{30};  // from one line of progress to the next in a pipe

/// Shows one line within the terminal's width and rewrites it, at most ten times a second. If the stream takes no
/// rewritten lines, writes one without a bar each `plain_every`, or none if that is 0. Not thread safe.
class ProgressLine {
 public:
  ProgressLine(std::FILE* stream, TerminalStyle style, Clock::duration plain_every = {})
      : stream_(stream), style_(style), plain_every_(plain_every) {}
  ~ProgressLine() { clear(); }
  void show(const std::string& what, const Progress& progress);
  void show(const std::string& text);
  /// Removes the line, so that other output can follow.
  void clear();

 private:
  std::FILE* stream_;
  TerminalStyle style_;
  Clock::duration plain_every_;
  bool shown_ = false;
  Clock::time_point last_{}, last_plain_ = Clock::now();
};

}  // namespace duet::cli
