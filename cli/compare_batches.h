// duet compare with several batches: one comparison after the other.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "compare/results.h"

namespace duet::cli {

/// Of the comparison of each batch, in the order given: with its part of the time budget and a folder in that of all.
/// Of one batch the options as they are.
std::vector<CompareOptions> options_of_batches(const CompareOptions& options);

/// Prints what several batches show together, and writes the page and the JSON of all. `partial`: not all were
/// compared, or not to the end. Throws DataError.
void report_batches(const CompareOptions& options, const std::vector<Results>& batches, bool partial,
                    const std::string& command_line, std::FILE* out);

}  // namespace duet::cli
