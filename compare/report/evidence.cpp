#include "compare/report/evidence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr double kLopsided = 0.1;  // by which an interval's sides differ, as a share of the longer
constexpr double kHundredth = 0.01;

/// Whether "±", the longer side of the two, says where both ends are, in numbers of this last digit.
bool even_sides(const Interval& interval, double last_digit) {
  const double below = interval.middle - interval.low, above = interval.high - interval.middle;
  return std::fabs(above - below) <= std::max(last_digit, kLopsided * std::max(below, above));
}

}  // namespace

Side side_of(const std::optional<Interval>& effect, double none) {
  if (!effect || !effect->excludes(none)) return Side::open;
  return effect->low > none ? Side::above : Side::below;
}

std::optional<Interval> speedup_interval(const Run& run) {
  if (!run.speedup || !run.speedup_low || !run.speedup_high) return std::nullopt;
  return Interval{*run.speedup, *run.speedup_low, *run.speedup_high};
}

Interval drawn_speedup(const Run& run) {
  return speedup_interval(run).value_or(Interval{*run.speedup, *run.speedup, *run.speedup});
}

std::string above_limit(const Results& results, const Run& run) {
  const Run* single = base_of(results);
  if (!single || !run.ok || !run.speedup || load_of(results) || (run.devices == 1 && !run.speedup_low) ||
      run.is_torch())
    return "";
  const double least = run.speedup_low.value_or(*run.speedup), ideal = run.threads() / single->threads_per_device;
  if (run.on_cpu() && least > static_cast<double>(results.machine.cores) / single->threads_per_device)
    return "above the cores";
  return least > ideal ? "above ideal" : "";
}

bool believable(const Results& results, const Run& run) {
  return run.ok && speedup_interval(run) && !oversubscribed(results, run) && above_limit(results, run).empty();
}

int largest_fair(const Results& results) {
  int devices = 0;
  for (const Run& run : results.runs)
    if (wraps(run) && run.devices > 1 && !oversubscribed(results, run)) devices = std::max(devices, run.devices);
  return devices;
}

std::optional<Interval> speed_against(const Run& a, const Run& b) { return ratio_interval(speed_ratios(a, b)); }

bool equal_speeds(const std::optional<Interval>& ratio) {
  constexpr double kEqual = 0.05;
  return ratio && ratio->low >= 1 - kEqual && ratio->high <= 1 + kEqual;
}

std::string not_told_apart(const Interval& ratio, const std::string& other) {
  return concat("could not be told apart from ", other, " (", fixed(ratio.low, 2), " to ", fixed(ratio.high, 2), ")");
}

bool wraps(const Run& run) { return run.ok && (run.mode == "dp" || run.mode == "ddp"); }

std::string times_text(const Interval& interval) {
  const std::string middle = fixed(interval.middle, 2) + "x ";
  if (!even_sides(interval, kHundredth)) return middle + times_ends(interval);
  return concat(middle, "±", fixed(std::max(kHundredth, interval.half_width()), 2));
}

std::string us_text(const Interval& interval) {
  if (!even_sides(interval, 1)) return us_text(interval.middle) + " " + us_ends(interval);
  return concat(us_text(interval.middle), " ±", grouped(std::llround(interval.half_width())));
}

std::string us_text(double us) { return grouped(std::llround(us)) + " us"; }

std::string times_range(const Interval& interval) {
  return concat(fixed(interval.low, 2), "x..", fixed(interval.high, 2), "x");
}

std::string times_ends(const Interval& interval) {
  return concat("(", fixed(interval.low, 2), "..", fixed(interval.high, 2), ")");
}

std::string us_ends(const Interval& interval) {
  return concat("(", grouped(std::llround(interval.low)), "..", grouped(std::llround(interval.high)), ")");
}

Unit unit_of(double step_us) {
  if (step_us < 2e3) return {};
  if (step_us < 1e6) return {1e-3, " ms", step_us < 2e4 ? 2 : 1};
  return {1e-6, " s", 2};
}

std::string gpus_text(const Machine& machine) {
  if (machine.gpus.empty()) return "no GPU";
  return (machine.gpus.size() > 1 ? concat(machine.gpus.size(), " x ") : "") + machine.gpus[0];
}

std::string speedup_text(const Run& run) {
  if (!run.speedup) return "-";
  const std::optional<Interval> interval = speedup_interval(run);
  return interval ? times_text(*interval) : fixed(*run.speedup, 2) + "x";
}

std::string marked_speedup(const Results& results, const Run& run) {
  return speedup_text(run) + (above_limit(results, run).empty() ? "" : " !");
}

std::string shared_cores_text(int devices, int cores, int threads) {
  const std::string all = threads == 1 ? "" : concat(devices * threads, " threads of ");
  return concat(all, count_text(devices), " share ", count_text(cores, "core"));
}

std::string count_text(int count, const std::string& what) { return concat(count, " ", what, count == 1 ? "" : "s"); }

bool several_backends(const Results& results) {
  std::set<std::string> backends;
  for (const Run& run : results.runs)
    if (run.mode == "ddp" && !run.backend.empty()) backends.insert(run.backend);
  return backends.size() > 1;
}

std::string mode_over(const Results& results, const Run& run) {
  return run.mode + (run.mode == "ddp" && several_backends(results) ? " over " + run.backend : "");
}

std::string mode_on(const Results& results, const Run& run) {
  return mode_over(results, run) + " on " + count_text(run.devices);
}

std::string row_name(const Results& results, const Run& run) {
  const bool threads = run.is_torch() && run.threads_per_device > 1;
  return run.mode + (all_cores_row(results, run) ? ", all cores" : "") +
         (threads ? concat(", ", run.threads_per_device, " threads") : "") + (run.graph ? ", graph" : "") +
         (run.workers == "thread" ? ", threads" : "") +
         (run.mode == "ddp" && !run.backend.empty() && several_backends(results) ? ", " + run.backend : "");
}

std::string row_label(const Results& results, const Run& run) {
  return row_name(results, run) + (run.mode == "single" ? "" : concat(" ", run.devices));
}

std::vector<std::vector<std::string>> aligned(std::vector<std::vector<std::string>> rows,
                                              const std::set<std::size_t>& left) {
  std::vector<std::size_t> widths(rows.at(0).size(), 0);
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  for (auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c)
      if (left.count(c) == 0)
        row[c] = flush_right(row[c], widths[c]);
      else if (c + 1 < widths.size())
        row[c] = flush_left(row[c], widths[c]);
  return rows;
}

std::vector<std::vector<std::size_t>> column_blocks(const std::vector<std::vector<std::string>>& rows, int columns,
                                                    std::size_t repeated) {
  std::vector<std::size_t> widths(rows.at(0).size(), 0);
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]) + 2);
  std::vector<std::size_t> first(std::min(repeated, widths.size()));
  std::iota(first.begin(), first.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> blocks = {first};
  const auto width_of = [&](const std::vector<std::size_t>& block) {
    return std::accumulate(block.begin(), block.end(), std::size_t{0},
                           [&](std::size_t sum, std::size_t c) { return sum + widths[c]; });
  };
  for (std::size_t c = first.size(); c < widths.size(); ++c) {
    const bool fits =
        width_of(blocks.back()) + widths[c] <= static_cast<std::size_t>(columns) + 1;  // begins with one blank
    if (!fits && blocks.back().size() > first.size()) blocks.push_back(first);
    blocks.back().push_back(c);
  }
  return blocks;
}

std::string blocks_text(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<std::vector<std::size_t>>& blocks) {
  std::string text;
  for (const std::vector<std::size_t>& block : blocks) {
    if (!text.empty()) text += "\n";
    for (const std::vector<std::string>& row : rows) {
      std::vector<std::string> cells;
      for (const std::size_t c : block)
        if (c < row.size()) cells.push_back(row[c]);
      text += table_line(cells) + "\n";
    }
  }
  return text;
}

std::string table_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) line += (line.empty() ? " " : "  ") + cell;
  return line;
}

}  // namespace duet::cli
