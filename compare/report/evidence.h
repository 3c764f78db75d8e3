// What all sentences, tables and pictures of a comparison share: when an effect may be stated, and how it is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compare/results.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"
#include "train/system/machine.h"

namespace duet::cli {

/// On which side of `none` an effect lies with its whole interval; open: it may be none, or the rounds are too few.
enum class Side { below, above, open };
Side side_of(const std::optional<Interval>& effect, double none);

/// Whether `holds` of any run that did not fail.
template <class Holds>
bool any_run(const Results& results, const Holds& holds) {
  return std::any_of(results.runs.begin(), results.runs.end(), [&](const Run& run) { return run.ok && holds(run); });
}

/// Speed-up of a run over single; none without rounds.
std::optional<Interval> speedup_interval(const Run& run);
/// The interval that a picture shows for a run that has a speed-up: of no width without rounds.
Interval drawn_speedup(const Run& run);
/// "above ideal" or "above the cores" where a speed-up is more than its devices or the machine's cores can explain;
/// empty where it is not.
std::string above_limit(const Results& results, const Run& run);
/// Whether something may be concluded from a speed-up: it has an interval, its devices have cores or GPUs of their own,
/// and it is not above_limit().
bool believable(const Results& results, const Run& run);
/// The largest number of devices above 1 that the cores carry and at least one of dp and ddp ran on; 0: none.
int largest_fair(const Results& results);
/// Where `a` against `b` lies: above 1 where it is faster.
std::optional<Interval> speed_against(const Run& a, const Run& b);
/// Whether the ratio of two speeds is 1 within 5 %, so that one may be called as fast as the other.
bool equal_speeds(const std::optional<Interval>& ratio);
/// "could not be told apart from ddp (0.80 to 1.03)", of two speeds whose ratio may be 1 or not.
std::string not_told_apart(const Interval& ratio, const std::string& other);
/// dp and ddp, where they ran.
bool wraps(const Run& run);

/// "1.79x ±0.02"; "1.65x (0.60..4.63)" where the sides differ by more than a tenth and a unit of the last digit.
std::string times_text(const Interval& interval);
/// "1,217 us ±692", or "1,217 us (525..1,402)", likewise.
std::string us_text(const Interval& interval);
/// "1,217 us".
std::string us_text(double us);
/// "0.98x..1.05x", "(0.98..1.05)", "(525..1,402)".
std::string times_range(const Interval& interval);
std::string times_ends(const Interval& interval);
std::string us_ends(const Interval& interval);
/// Times of a step and of its parts, all in the unit and with the digits of the step.
struct Unit {
  double per_us = 1;
  const char* name = " us";
  int digits = 0;

  std::string number(double us) const { return fixed(us * per_us, digits); }
  std::string text(double us) const { return number(us) + name; }
};
Unit unit_of(double step_us);
/// "no GPU", "2 x NVIDIA H100".
std::string gpus_text(const Machine& machine);
/// A speed-up by times_text(); without an interval "1.79x"; without a speed-up "-".
std::string speedup_text(const Run& run);
/// speedup_text() with the mark " !" where the speed-up is above_limit().
std::string marked_speedup(const Results& results, const Run& run);
/// What is said of devices without cores or GPUs of their own.
inline constexpr const char* kMeasuresOverhead = ": this measures overhead, not scaling";
/// "4 devices share 2 cores"; "8 threads of 4 devices share 2 cores" with 2 threads each.
std::string shared_cores_text(int devices, int cores, int threads);
/// "1 device", "2 devices"; so with "core".
std::string count_text(int count, const std::string& what = "device");

/// Whether ranks of ddp were run over more than one backend.
bool several_backends(const Results& results);
/// "ddp over gloo" where there are several backends, else the mode.
std::string mode_over(const Results& results, const Run& run);
/// "ddp over gloo on 2 devices".
std::string mode_on(const Results& results, const Run& run);
/// "single, all cores", "torch, 2 threads", else the mode.
std::string row_name(const Results& results, const Run& run);
/// "single, all cores", "ddp 2".
std::string row_label(const Results& results, const Run& run);

/// Cells as wide as the widest of their column: flush right but in the columns `left`; the last of those is not padded
/// where it is the table's last. Rows can be short.
std::vector<std::vector<std::string>> aligned(std::vector<std::vector<std::string>> rows,
                                              const std::set<std::size_t>& left);
/// The columns of aligned() rows in blocks of at most so many characters, each of which has the first `repeated` ones.
std::vector<std::vector<std::size_t>> column_blocks(const std::vector<std::vector<std::string>>& rows, int columns,
                                                    std::size_t repeated);
/// The rows, with these columns in each block, and an empty line between blocks.
std::string blocks_text(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<std::vector<std::size_t>>& blocks);
/// " mode  devices".
std::string table_line(const std::vector<std::string>& cells);

}  // namespace duet::cli
