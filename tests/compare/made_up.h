// A comparison that never ran: two cores, single, averaging, dp and ddp on 1, 2 and 4 devices, one of them failed.
#pragma once

#include <string>

#include "compare/cost_model/cost_model.h"
#include "compare/results.h"

namespace duet_test {

duet::cli::Results made_up();
/// With copies on 2 devices, which together with communication explain what the others take.
duet::cli::Results made_up_with_copies();

/// The sentences that a report says of it, a line each.
std::string findings_text(const duet::cli::Results& results);

/// Round numbers in every field of a cost model.
duet::cli::CostModel made_up_model();
/// The same, with a step that made_up() doesn't refute: it claims to be right within a quarter.
duet::cli::CostModel fitting_model();

}  // namespace duet_test
