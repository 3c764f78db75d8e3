// The parts of a step in numbers, for the terminal.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/measure/statistics.h"

namespace duet::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string whole_us(double us) { return grouped(std::llround(us)); }

/// A table of rows and its heading; empty unless a run has a column.
std::string part_table(const std::string& title, Rows rows, int columns) {
  if (rows[0].size() < 2) return "";
  std::size_t label = 0;
  for (const std::vector<std::string>& row : rows) label = std::max(label, width(row[0]));
  const std::size_t most = std::max(static_cast<std::size_t>(columns), label + 9) - label - 3;
  for (std::string& run : rows[0]) run = cut(run, most);
  const Rows cells = aligned(rows, {0});
  return concat(wrapped_text(title, columns), "\n", blocks_text(cells, column_blocks(cells, columns, 1)), "\n");
}

/// A column for each timed run; parts that none of them has are left out.
std::string measured_table(const Results& results, int columns) {
  Rows rows = {{"part"}};
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (run.ok && run.step_us.sum() > 0) runs.push_back(&run);
  for (const Run* run : runs) rows[0].push_back(row_label(results, *run));
  for (const PartName& part : kStepParts) {
    std::vector<std::string> row = {part.name};
    double all = 0;
    for (const Run* run : runs) {
      all += run->step_us.*part.member;
      row.push_back(fixed(run->step_us.*part.member, 1));
    }
    if (all > 0) rows.push_back(row);
  }
  rows.push_back({"step"});
  for (const Run* run : runs) rows.back().push_back(fixed(run->step_us.sum(), 1));
  return part_table("Parts of a step, as measured, in us:", rows, columns);
}

/// A column for each run that overhead_of() explains.
std::string loss_table(const Results& results, int columns) {
  Rows rows = {{"part"}};
  for (const Run* run : runs_with_overhead(results)) {
    const Overhead overhead = *overhead_of(results, *run);
    if (rows.size() == 1)
      for (const OverheadPart& part : overhead.parts) rows.push_back({part.title});
    rows[0].push_back(row_label(results, *run));
    for (std::size_t i = 0; i < overhead.parts.size(); ++i)
      rows[i + 1].push_back(overhead.parts[i].us ? whole_us(*overhead.parts[i].us) : "-");
  }
  rows.push_back({"step"});
  for (const Run* run : runs_with_overhead(results))
    rows.back().push_back(whole_us(overhead_of(results, *run)->step_us));
  return part_table("The same steps: the ideal, and the time beyond it, in us:", rows, columns);
}

}  // namespace

std::string parts_text(const Results& results, int columns) {
  const std::string warnings = wrapped_text(load_of(results) ? answer(results) : "", columns) +
                               wrapped_text(results.partial ? kPartial : "", columns);
  std::string text = measured_table(results, columns) + loss_table(results, columns);
  if (results.model)
    text += wrapped_text(concat("A step of single costs ", whole_us(results.model->step.fixed_us), " us and ",
                                fixed(results.model->step.per_sample_us, 1), " us for each sample of its batch."),
                         columns);
  return concat(warnings, warnings.empty() ? "" : "\n", text.empty() ? "No step was timed.\n" : text);
}

}  // namespace duet::cli
