// The parked life of a training process: bursts of whole training steps, when a comparison asks for them.
#pragma once

#include "cli/options/options.h"
#include "cli/train/setup.h"
#include "cli/train/trainer.h"

namespace duet::cli {

/// Parks this rank and runs the bursts that --bursts asks for, all ranks the same, until it asks to end. Each goes on
/// with the training: some steps to warm up, then the timed ones. SIGINT and SIGTERM end the process at once.

void serve_bursts(const TrainOptions& options, Setup& setup, const RankTeam& team);

}  // namespace duet::cli
