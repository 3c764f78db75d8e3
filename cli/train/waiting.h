// Waiting for the last rank or replica, apart from moving and adding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/train/rank_events.h"
#include "measure/run.h"

namespace duet::cli {

/// A stretch of a lane of the trace in which a rank or replica waits for the last one.
struct Waiting {
  std::string device;
  bool in_communication = false;  // the lane of collectives, else that of computing
  std::string part;               // of the step, where computing waits: "communication", "forward", "backward"
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Of one step, by ranks. The n-th collective of a rank waits from its begin to the begin of the same collective on
/// the rank that comes last: before that no rank can have its result. Computing waits where it stands still for such a
/// collective. In a single process, replicas that have ended forward or backward wait for the last one. `steps`: the
/// same step of all ranks, whose times must be of one clock. Empty where ranks have traced different collectives.
std::vector<std::vector<Waiting>> waiting_in(const std::vector<const RankStep*>& steps);

/// Fills the run's fields on waiting and moving from the traces of all ranks, means over the steps that all of them
/// traced. Leaves them null where a trace holds no collective, or no second replica.
void fill_waiting(Run& run, const std::vector<RankSteps>& ranks);

/// Half the 95 % interval of the mean of values that follow one another in time, from the means of ten blocks of them;
/// null for fewer than twenty.
std::optional<double> half_interval(const std::vector<double>& values);

/// Equal for processes whose monotonic clocks are the same: the kernel's boot id and the time namespace.
std::string clock_identity();

}  // namespace duet::cli
