// What a rank of a test does: `ddp_worker SCENARIO ARGUMENTS...`.
#pragma once

#include <string>
#include <vector>

#include "ddp/process_group.h"

namespace duet_test {

using Arguments = std::vector<std::string>;

/// Runs a scenario in which models train; false if the first argument names none of them.
bool run_model_scenario(const Arguments& arguments);
bool run_network_scenario(const Arguments& arguments);

/// Sums and visits to the store; prints what came of them.
void sum_rounds(duet::ddp::ProcessGroup& group, int rounds);

}  // namespace duet_test
