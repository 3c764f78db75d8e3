// What duet compare prints of its results, and duet show again.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

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
/// Prints the line above the results of one of several batches.
void print_batch_title(std::int64_t batch, const ShowSettings& settings, std::FILE* out);
/// Prints what several batches show together.
void print_batches(const std::vector<Results>& batches, const ShowSettings& settings, std::FILE* out);

}  // namespace duet::cli
