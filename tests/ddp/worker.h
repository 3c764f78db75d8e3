// What a rank of a test does: `ddp_worker SCENARIO ARGUMENTS...`.
#pragma once

#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet_test {

using Arguments = std::vector<std::string>;

/// Runs a scenario in which models train; false if the first argument names none of them.
bool run_model_scenario(const Arguments& arguments);
bool run_network_scenario(const Arguments& arguments);

/// Joins two network namespaces until SIGTERM: "SPACE SPACE DELAY_MS LOST_OF", where one packet of LOST_OF is lost, and
/// after SIGUSR1 all, until the next. Prints how many it were. Throws UsageError where there can be none.
void run_cable(const Arguments& arguments);

/// Sums and visits to the store; prints what came of them.
void sum_rounds(duet::ddp::ProcessGroup& group, int rounds);

}  // namespace duet_test
