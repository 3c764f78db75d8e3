// Comparisons of the same cells with several batches, read together. Each `Results` must have gone through
// compare_with_single().
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/display.h"
#include "compare/results.h"
#include "report/page/page.h"

namespace duet::cli {

/// Of the comparison of each batch, in the order given: with its part of the time budget and a folder in that of all.
/// Of one batch the options as they are.
std::vector<CompareOptions> options_of_batches(const CompareOptions& options);

/// A run of one of the comparisons.
struct BatchPoint {
  const Results* results = nullptr;
  const Run* run = nullptr;
};

/// The runs of a mode, over one backend, on one number of devices, by batch.
struct BatchSeries {
  std::string name, mode;
  int devices = 1;
  std::vector<BatchPoint> points{};
};

/// Those with a speed-up, in the order of the first comparison's table, copies and single aside. They refer to
/// `batches`.
std::vector<BatchSeries> batch_series(const std::vector<Results>& batches);

/// The most devices on which a mode has a speed-up, those that share cores or GPUs only where all do; 0: none has.
int most_devices(const std::vector<BatchSeries>& series);

/// Speed-ups on most_devices(): a row per batch, a column per mode; empty where there are none.
std::string batch_table(const std::vector<Results>& batches, TerminalStyle style);
/// At which batches a mode is faster than single, and at which slower, as far as intervals show it.
std::vector<std::string> batch_findings(const std::vector<Results>& batches);

/// Speed-up against batch: a line per mode and number of devices above 1, with bars from end to end of the interval;
/// empty() where there is nothing to draw.
Chart batch_chart(const std::vector<Results>& batches);

/// The page over all batches, with links to theirs.
std::string batches_page(const std::vector<Results>& batches, bool partial, const std::string& command_line);
/// JSON with a list "batches" of the results.json of each.
std::string batches_json(const std::vector<Results>& batches, bool partial);

}  // namespace duet::cli
