// What all ranks of a run measured, brought together.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/train/trainer.h"
#include "measure/run.h"

namespace duet::cli {

/// Makes the parts of a step, waiting_share and communication_us the means over the ranks, on all ranks. The rank that
/// comes last waits for none: rank 0 alone does not show what the ranks wait for each other.
void average_over_ranks(Run& run, const RankTeam& team);

/// Stops the trace and gives that of every rank, on all ranks. On rank 0 it also fills the run's median_step and, on
/// CPU devices whose ranks have one clock, its fields on waiting.
std::vector<std::string> gather_trace(Run& run, const TrainOptions& options, const RankTeam& team);

}  // namespace duet::cli
