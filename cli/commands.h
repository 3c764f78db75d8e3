// The commands of the program `duet`; each returns its exit code or throws.
#pragma once

#include "cli/options.h"

namespace duet::cli {

int info(const InfoOptions& options);
int bench(const BenchOptions& options);
int launch(const LaunchOptions& options);
int train(const TrainOptions& options);
/// `command_line` is for the report.
int compare(const CompareOptions& options, const std::string& command_line);

}  // namespace duet::cli
