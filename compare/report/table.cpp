// The table of a comparison, in the terminal.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr const char* kNothing = "-";

std::string epoch_text(const std::vector<double>& values) {
  if (values.empty()) return kNothing;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string low = seconds(*least), high = seconds(*most);
  return seconds(median(values)) + " s" + (low == high ? "" : " (" + low + ".." + high + ")");
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + " %"; }

std::string efficiency_text(const Results& results, const Run& run) {
  if (!sharing(run).empty()) return sharing(run);
  if (oversubscribed(results, run)) return "oversubscribed";
  return run.efficiency ? percent(*run.efficiency, 0) : kNothing;
}

std::string largest(const std::vector<double>& values, double per_mb) {
  if (values.empty()) return kNothing;
  const double most = *std::max_element(values.begin(), values.end()) / per_mb;
  return fixed(most, most < 100 ? 2 : 0) + " MB";
}

/// Shares of a step in which computing stands still: for the last rank or replica, and for moving and adding. Both in
/// the second where they were not measured apart.
std::pair<std::string, std::string> standing_still(const Run& run) {
  const double step = run.step_us.sum();
  if (run.devices < 2 || run.mode == "copies" || !run.timed() || (run.graph && !run.eager_parts) || step <= 0)
    return {kNothing, kNothing};
  if (!run.step_waiting_us)
    return {kNothing, percent(run.waiting_share, 1) + (run.mode == "dp" ? "" : " with waiting")};
  const StepParts waiting = waiting_of(run);
  const double moving = run.waiting_share - waiting.communication / step;
  return {percent(waiting.sum() / step, 1), percent(std::max(0.0, moving), 1)};
}

/// "120 MB", or of several processes "2 x 117 MB", of which the largest takes so much.
std::string memory_text(const std::vector<double>& of_processes) {
  if (of_processes.empty()) return kNothing;
  const std::string most = fixed(*std::max_element(of_processes.begin(), of_processes.end()), 0) + " MB";
  return (of_processes.size() > 1 ? concat(of_processes.size(), " x ") : "") + most;
}

/// Equal bits are not promised on GPUs.
bool close_losses(const Run& a, const Run& b) {
  if (a.train_loss.empty() || b.train_loss.empty()) return false;
  const double expected = a.train_loss.back();
  return std::isfinite(expected) && std::fabs(expected - b.train_loss.back()) <= 1e-3 * std::fabs(expected);
}

/// The cells of a run, of which one that failed has only the first two; without a run the titles of all columns.
std::vector<std::string> cells_of(const Results& results, const Run* run) {
  std::vector<std::string> cells;
  const auto add = [&](const char* title, const auto& text) { cells.push_back(run ? text() : std::string(title)); };
  add("mode", [&] { return row_name(results, *run); });
  add("devices", [&] { return std::to_string(run->devices); });
  if (run && !run->ok) return cells;
  if (results.weak) add("batch", [&] { return grouped(run->batch); });
  add("start", [&] { return seconds(run->startup_s) + " s"; });
  add("epoch", [&] { return epoch_text(run->epoch_s); });
  add("samples/s", [&] { return run->timed() ? rate_text(run->samples_per_s) : kNothing; });
  add("speed-up", [&] { return marked_speedup(results, *run); });
  add("efficiency", [&] { return efficiency_text(results, *run); });
  if (any_run(results, [](const Run& one) { return one.ceiling_efficiency.has_value(); }))
    add("of copies", [&] { return run->ceiling_efficiency ? percent(*run->ceiling_efficiency, 0) : kNothing; });
  add("waiting", [&] { return standing_still(*run).first; });
  add("moving", [&] { return standing_still(*run).second; });
  add("loss", [&] { return run->train_loss.empty() ? kNothing : fixed(run->train_loss.back(), 4); });
  add("accuracy", [&] { return run->test_accuracy.empty() ? kNothing : percent(run->test_accuracy.back(), 2); });
  add("memory", [&] { return memory_text(run->peak_memory_mb); });
  if (any_run(results, [](const Run& one) { return !one.device_memory_mb.empty(); })) {
    add("per device", [&] { return largest(run->device_memory_mb, 1); });
    add("moved/step", [&] { return largest(run->moved_bytes_per_step, 1e6); });
  }
  add("same result", [&] { return same_result(results, *run); });
  return cells;
}

}  // namespace

std::vector<std::string> table_columns(const Results& results) { return cells_of(results, nullptr); }
std::vector<std::string> table_row(const Results& results, const Run& run) { return cells_of(results, &run); }

const Run* reference_of(const Results& results, const Run& run) {
  const Run* const single = find_run(results, "single", 1);
  return !results.weak || (single && single->batch == run.batch) ? single : find_run(results, "dp", run.devices);
}

std::string same_result(const Results& results, const Run& run) {
  const Run* const reference = reference_of(results, run);
  if (!run.ok || !reference || &run == reference || run.parameters_sha256.empty()) return kNothing;
  if (run.parameters_sha256 == reference->parameters_sha256) return "yes";
  if (run.mode == "averaging") return "own data split";
  if (run.per_device_statistics || reference->per_device_statistics) return "per-device statistics";
  if (run.library_sums || reference->library_sums) return "LibTorch's sums";
  if (run.added_uses || reference->added_uses) return "several uses added up";
  if (!run.on_cpu()) return close_losses(*reference, run) ? "loss within 0.1 %" : "no";
  return run.first_differing_step ? "no: differs from step " + std::to_string(*run.first_differing_step) : "no";
}

std::string rate_text(double per_s) {
  constexpr double kFew = 100;
  return per_s < kFew ? fixed(per_s, 1) : grouped(std::llround(per_s));
}

namespace {

/// Puts mode and devices into one column, and cuts cells that don't fit beside it.
void make_narrow(const Results& results, std::vector<std::vector<std::string>>& rows, std::size_t columns) {
  constexpr std::size_t kBetween = 3, kLeast = 6;
  std::size_t label = 0;
  for (const Run& run : results.runs) label = std::max(label, width(row_label(results, run)));
  const std::size_t room = std::max(columns, label + kBetween + kLeast) - label - kBetween;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::string& cell : rows[r]) cell = cut(cell, room);
    if (r > 0) rows[r][0] = row_label(results, results.runs[r - 1]);
    rows[r].erase(rows[r].begin() + 1);
  }
}

}  // namespace

std::string table(const Results& results, TerminalStyle style, int columns) {
  std::vector<std::vector<std::string>> rows = {table_columns(results)};
  for (const Run& run : results.runs) rows.push_back(table_row(results, run));
  const auto most = static_cast<std::size_t>(columns);
  if (width(table_line(aligned(rows, {})[0])) > most) make_narrow(results, rows, most);
  const std::size_t last = rows[0].size() - 1;
  rows = aligned(rows, {0, last});
  const auto blocks = column_blocks(rows, columns, 1);
  for (std::string& title : rows[0]) title = bold(title, style);
  for (std::size_t r = 0; r < results.runs.size(); ++r) {
    std::vector<std::string>& row = rows[r + 1];
    if (!results.runs[r].ok) {
      row.push_back(red("failed: " + results.runs[r].error, style));
    } else if (row[last] == "yes") {
      row[last] = green(row[last], style);
    } else if (row[last].starts_with("no")) {
      row[last] = red(row[last], style);
    }
  }
  std::string out = blocks_text(rows, blocks);
  out += wrapped_text(base_note(results), columns, 1);
  for (const std::string& line : wrapped(results.partial ? kPartial : "", most, 1)) out += red(line, style) + "\n";
  return out;
}

std::string execution_lines(const Results& results) {
  std::string lines;
  for (const Run& run : results.runs)
    if (run.ok && run.mode == "averaging" && run.execution_s > 0)
      lines += execution_line(run.devices, !run.on_cpu(), run.execution_s) + "\n";
  return lines;
}

}  // namespace duet::cli
