// What duet compare prints of its results, and duet show again.
#pragma once

#include <cstdio>
#include <string>

#include "compare/results.h"
#include "train/system/display.h"

namespace duet::cli {

struct ShowSettings {
  bool wide = false;      // all rows, columns and sentences in place of the first screen
  bool tutorial = false;  // the tutorials' lines, too
  TerminalStyle style{};
  std::string out;  // the folder of the report; empty: that is not said
};

void print_results(const Results& results, const ShowSettings& settings, std::FILE* out);

}  // namespace duet::cli
