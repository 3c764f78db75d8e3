// The table of a comparison, in the terminal.
#pragma once

#include <string>
#include <vector>

#include "cli/report/results.h"
#include "cli/system/terminal.h"

namespace duet::cli {

/// One run as text, one entry per column of table_columns(); a failed run's second part is empty.
std::vector<std::string> table_row(const Results& results, const Run& run);
/// With two more, memory and moved bytes of the fullest and the busiest device, where a run was on GPUs.
std::vector<std::string> table_columns(const Results& results);

/// Whether the parameters equal those of single: "yes", "no: differs from step 17", "own data split", "-"; on GPUs,
/// where equal bits are not promised, also "loss within 0.1 %".
std::string same_result(const Results& results, const Run& run);
/// "single, all cores", else the mode.
std::string row_name(const Results& results, const Run& run);

/// Said below the table of an interrupted comparison.
inline constexpr const char* kPartial = "partial: interrupted, only the cells that had ended are listed";

/// The whole table with its header, a line per run. Failed runs say why in place of numbers; parts of a comparison say
/// that they are.
std::string table(const Results& results, TerminalStyle style);

}  // namespace duet::cli
