// The ranks of a job as threads of one process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

struct RankThreadsOptions {
  /// "shm", "tcp", "gloo", "memory" (messages are copied within the process), "nccl", or "auto": shm where memory can
  /// be shared, else memory.
  std::string backend = "auto";
  /// The ranks' GPUs, for nccl.
  std::vector<Device> devices{};
  GroupOptions group{};
};

/// Runs `body` as the ranks 0 to ranks - 1, each on a thread of its own, and returns when all have ended. What a rank
/// changes must be its own: model, optimizer, loader. Its device need not be: ranks that name none all compute on
/// cpu:0, at the same time and with the same bits as elsewhere. When a rank throws, its connections are dropped, so
/// that the others fail too instead of waiting for it. Then the exception of the rank that failed first by itself is
/// thrown, with its own type and "rank 1: " in front. Throws UsageError for a bad option.
void run_rank_threads(int ranks, const std::function<void(ProcessGroup&)>& body,
                      const RankThreadsOptions& options = {});

}  // namespace duet::ddp
