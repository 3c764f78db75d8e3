// The cells of a comparison: they learn one after the other, then rounds time them against each other.
#pragma once

#include "cli/options/options.h"
#include "compare/results.h"

namespace duet::cli {

/// Results of all cells; marked as partial where a signal came before all had learnt and all rounds were over. A failed
/// cell is a row that says why.
Results run_cells(const CompareOptions& options, const Machine& machine, const Training& settings);

}  // namespace duet::cli
