// The terminal: whether it takes colours and rewritten lines, and the progress line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lib/monotonic.h"

namespace duet::cli {

struct TerminalStyle {
  bool colour = false;   // escape sequences
  bool rewrite = false;  // a progress line may be rewritten in place
  bool operator==(const TerminalStyle&) const = default;
};

/// Plain for --quiet, a pipe or TERM=dumb; NO_COLOR (set and not empty) takes the colours only.
TerminalStyle terminal_style(bool is_terminal, bool quiet, const char* no_color, const char* term);
/// The same for an open stream and this process's environment.
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

/// Where a training stands.
struct Progress {
  int epoch = 0;  // from 1
  int epochs = 1;
  std::int64_t step = 0, steps = 0;  // of the epoch
  double loss = 0;
  double samples_per_s = 0;
  double left_s = 0;  // until the end of the training
};
/// One line of text and back; what the file of `duet train --progress` holds. False when `line` is no progress.
std::string to_line(const Progress& progress);
bool from_line(const std::string& line, Progress& progress);

/// " ddp 2 ▕████    ▏ epoch 1/1  312/469  loss 0.31  48.9k samples/s  ETA 3 s".
std::string progress_text(const std::string& what, const Progress& progress);

/// Shows one line and rewrites it, at most ten times a second. Not thread safe.
class ProgressLine {
 public:
  ProgressLine(std::FILE* stream, TerminalStyle style) : stream_(stream), style_(style) {}
  ~ProgressLine() { clear(); }
  void show(const std::string& what, const Progress& progress);
  void show(const std::string& text);
  /// Removes the line, so that other output can follow.
  void clear();

 private:
  std::FILE* stream_;
  TerminalStyle style_;
  bool shown_ = false;
  Clock::time_point last_{};
};

}  // namespace duet::cli
