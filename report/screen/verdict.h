// The answer of a comparison: which mode to use here, and by how much it is the fastest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/results.h"
#include "measure/statistics.h"

namespace duet::cli {

/// One or two sentences: dp, ddp or one device on all cores, with the interval of its speed-up over single, or that no
/// gain was measured. A mode gains where its interval lies above 1; the one whose lower end is highest is named first,
/// and together with it those whose ratio to it holds 1. Empty where nothing was timed in rounds on devices with cores
/// of their own.
std::string verdict(const Results& results);
/// The verdict, or why there is none.
std::string answer(const Results& results);

/// How many times as fast duet's best mode is as PyTorch's best on as many cores; empty without both.
std::string against_torch(const Results& results);

/// The run of dp or ddp on several devices whose speed-up has the highest lower end; null where there is none.
const Run* best_wrapped(const Results& results);

}  // namespace duet::cli
