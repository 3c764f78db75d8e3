// A whole training run of one process: output, measurements and files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "train/measure/events.h"
#include "train/measure/run.h"
#include "train/setup.h"

namespace duet::cli {

struct Outcome {
  Run run;         // complete on rank 0
  int signal = 0;  // the signal that ended the run early, or 0
};

/// Set where the launcher of this rank reads progress, by from_line(), from its stderr.
inline constexpr const char* kRelayed = "DUET_RELAYED_PROGRESS";
/// What the progress line calls a training.
std::string progress_title(const TrainOptions& options);

/// Whether the options need a trace of the steps.
bool traces(const TrainOptions& options);

/// Adds numbers up over all ranks, on all ranks.
void sum_over_ranks(ddp::ProcessGroup& group, std::span<double> numbers);

/// Makes the parts of a step, waiting_share and communication_us the means over the ranks, on all ranks. The rank that
/// comes last waits for none: rank 0 alone does not show what the ranks wait for each other.
void average_over_ranks(Run& run, ddp::ProcessGroup& group);

/// On rank 0 it gives the trace of every rank from this position of its own on, and fills the run's median_step and, on
/// CPU devices whose ranks have one clock, its fields on waiting. All ranks have ended what is traced.
std::vector<RankEvents> gather_trace(Run& run, std::uint64_t since, const TrainOptions& options,
                                     ddp::ProcessGroup& group);

/// Trains from where --resume left off, or from the start; with --untrained a few steps only. Rank 0 prints, writes
/// checkpoints, fingerprints and the result. `group`: the ranks, or a group of one.
Outcome train_and_report(const TrainOptions& options, const Images& images, Setup& setup, ddp::ProcessGroup& group);

}  // namespace duet::cli
