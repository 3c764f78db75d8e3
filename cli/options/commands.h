// The commands of the program `duet`; each returns its exit code or throws.
#pragma once

#include <string>

#include "cli/options/options.h"

namespace duet::cli {

int info(const InfoOptions& options);
int bench(const BenchOptions& options);
/// `command_line` is for the page.
int bench(const CollectiveOptions& options, const std::string& command_line);
int launch(const LaunchOptions& options);
/// The part of it that measures tape, modules and loader; exit code 1 if both sides do not end with the same loss.
int bench_overhead(const BenchOptions& options);
int train(const TrainOptions& options);
/// `command_line` is for the report.
int compare(const CompareOptions& options, const std::string& command_line);

}  // namespace duet::cli
