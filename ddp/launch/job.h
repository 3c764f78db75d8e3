// One attempt of a launch: its ranks from their start to their end.
#pragma once

#include <string>
#include <vector>

#include "ddp/launch/job_guard.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/launch/rank_output.h"
#include "ddp/launch/rank_process.h"

namespace duet::ddp {

/// Starts the ranks and returns when all have ended. `common` is what they share; `cores` has an entry for each local
/// rank, or none; `folder` is empty if there are no files. Throws UsageError when the program cannot be run.
LaunchResult run_job(const LaunchOptions& options, const SignalPipe& signals, LaunchOutput& output, JobGuard& guard,
                     const RankVariables& common, const std::vector<std::vector<int>>& cores,
                     const std::string& folder);

/// Of a launch that this signal ended.
LaunchResult interrupted_by(int signal);

/// What remarks call the ranks of other launchers; empty if there are none.
std::string ranks_elsewhere(const LaunchOptions& options);

/// Queues a remark of the launcher.
void remark(const LaunchOptions& options, LaunchOutput& output, const std::string& text);
/// Writes one at once, where there is no thread for it.
void remark(const LaunchOptions& options, const std::string& text);

}  // namespace duet::ddp
