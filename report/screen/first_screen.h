// What duet compare prints: the answer, a picture of it in characters, where the rest of the ideal went, and what more
// devices would give.
#pragma once

#include <string>

#include "cli/system/terminal.h"
#include "compare/results.h"

namespace duet::cli {

inline constexpr int kScreenLines = 24, kScreenColumns = 100, kNarrowestScreen = 60;

struct ScreenOptions {
  int columns = kScreenColumns;  // between kNarrowestScreen and kScreenColumns; narrow screens have fewer columns
  TerminalStyle style{};
  std::string out = "out";  // the folder of the report
};

/// Lines of at most `columns` characters, at most kScreenLines of them unless that many rows failed.
std::string first_screen(const Results& results, const ScreenOptions& options);

}  // namespace duet::cli
