// The barrier that names the ranks that do not come.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ddp/store/store.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::torch {

/// Works as ProcessGroupGloo's, through the group's store and with its texts: rank 0 waits for the others one after the
/// other, `timeout` in all, and throws CommError that names the first rank that has not come, with `all` every one;
/// then the others throw CommError too. The group goes on. `number` is the same on all ranks, and new for each call.
inline void monitored_barrier(ddp::Store& store, int rank, int size, std::uint64_t number, ddp::Milliseconds timeout,
                              bool all) {
  const std::string prefix = concat("duet/c10d/monitored_barrier/", number, "/");
  const std::string verdict = prefix + "verdict";
  if (rank != 0) {
    store.set(concat(prefix, rank), "");
    bool passed = false;
    try {
      store.wait({verdict}, std::max(timeout, ddp::Milliseconds(1)));
      passed = store.get(verdict) == "passed";
    } catch (const CommError&) {
    }
    require<CommError>(passed, "[Rank ", rank, "]: Rank ", rank,
                       " successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                       "rank 0. Please check rank 0 logs for faulty rank.");
    return;
  }
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string missing;
  int count = 0;
  for (int peer = 1; peer < size && timeout.count() > 0 && (all || count == 0); ++peer) {
    const auto left = std::chrono::ceil<ddp::Milliseconds>(deadline - Clock::now());
    try {
      store.wait({concat(prefix, peer)}, std::max(left, ddp::Milliseconds(1)));
    } catch (const CommError&) {
      missing += (count++ > 0 ? ", " : "") + std::to_string(peer);
    }
  }
  const bool passed = count == 0 && timeout.count() > 0;
  store.set(verdict, passed ? "passed" : "failed");
  require<CommError>(timeout.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ", timeout.count(),
                     " ms");
  require<CommError>(passed, "[Rank 0]: ", all ? "Ranks " : "Rank ", missing, " failed to pass monitoredBarrier in ",
                     timeout.count(), " ms");
}

}  // namespace duet::torch
