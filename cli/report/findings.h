// "Findings": sentences computed from a comparison.
#pragma once

#include <string>
#include <vector>

#include "cli/report/results.h"

namespace duet::cli {

/// Each sentence is left out where its evidence is too thin: fewer than 5 steps an epoch, a spread wider than the
/// effect, or runs that are missing. `Results` must have gone through compare_with_single().
std::vector<std::string> findings(const Results& results);

/// The headline: which mode was fastest on how many devices, and whether the bits agree.
std::string headline(const Results& results);

}  // namespace duet::cli
