// What a rank of a test does: `ddp_worker SCENARIO ARGUMENTS...`.
#pragma once

#include <string>
#include <vector>

namespace duet_test {

using Arguments = std::vector<std::string>;

/// Runs a scenario in which models train; false if the first argument names none of them.
bool run_model_scenario(const Arguments& arguments);

}  // namespace duet_test
