// A rank of ddp that is parked, and times the all-reduces of its network alone when it is asked for a burst.
#pragma once

#include "cli/options/options.h"
#include "cli/train/setup.h"
#include "ddp/group/process_group.h"

namespace duet::cli {

/// Trains a few traced steps, which say what is sent when; then serves bursts of the file `options.bursts` whose steps
/// are passes over all sizes, until the command to end. For processes on CPU devices.
void serve_collectives(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group);

}  // namespace duet::cli
