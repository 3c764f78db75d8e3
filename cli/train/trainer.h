// A whole training run of one process: output, measurements and files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/train/setup.h"
#include "lib/base/trace.h"
#include "measure/run.h"

namespace duet::cli {

/// The ranks of a run, as far as a training needs them.
struct RankTeam {
  int rank = 0, size = 1;
  /// Adds numbers up over all ranks, on all ranks.
  std::function<void(std::span<double>)> sum{};
  /// Every rank's text, in rank order, on all ranks.
  std::function<std::vector<std::string>(const std::string&)> gather{};
  std::string backend{};  // of their process group; empty: one rank
  /// Stops the trace and gives this rank's part of it.
  std::function<std::vector<TraceEvent>()> take_trace = Trace::take;
};

struct Outcome {
  Run run;         // complete on rank 0
  int signal = 0;  // the signal that ended the run early, or 0
};

/// Steps that one graph holds, in epochs of so many: what lies between two readings of the loss, in equal parts.
std::int64_t graph_steps(const TrainOptions& options, std::int64_t epoch_steps);

/// Whether the options need a trace of the steps.
bool traces(const TrainOptions& options);
/// Starts this process's trace where the options need one. Threads that are ranks have it started before them.
void start_trace(const TrainOptions& options);

/// Trains from where --resume left off, or from the start; with --untrained a few steps only. Rank 0 prints, writes
/// checkpoints, fingerprints and the result. `started_ns`: monotonic_ns() when the program was started.
Outcome train_and_report(const TrainOptions& options, const Images& images, Setup& setup, const RankTeam& team,
                         std::int64_t started_ns);

}  // namespace duet::cli
