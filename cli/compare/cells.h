// The cells of a comparison: a mode on a number of devices, each run in processes of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/options/options.h"
#include "cli/report/results.h"
#include "cli/system/terminal.h"

namespace duet::cli {

struct Cell {
  Mode mode = Mode::single;
  int devices = 1;
  int threads_per_device = 1;
  std::string backend{};  // of ranks, where it is not the options'

  bool operator==(const Cell&) const = default;
};

/// single once, then single on all `cores` where that is more threads than a device has, then the other modes on every
/// number of devices, and several ranks of ddp over every backend.
std::vector<Cell> cells_of(const CompareOptions& options, int cores);

/// "dp 2", "ddp 2, gloo", "single, all cores": no two cells of a comparison have the same.
std::string title(const Training& options, const Cell& cell);

/// The command line of `duet train` for a cell.
std::vector<std::string> cell_arguments(const Training& options, const Cell& cell);

/// Thrown when a signal asked to end.
struct Interrupted {
  int signal;
};

/// Runs cells one after the other and shows how far each is. Files go to a folder that must exist.
class CellRunner {
 public:
  CellRunner(const Training& options, std::string folder, ProgressLine& line, int cells)
      : options_(options), folder_(std::move(folder)), line_(line), cells_(cells) {}

  /// A failed cell is a run that is not ok and says why. Throws Interrupted.
  Run run(const Cell& cell) { return run(cell, title(options_, cell), {}); }
  /// With more options, under a title of its own.
  Run run(const Cell& cell, const std::string& title, std::vector<std::string> more);
  /// The hash of all parameters after every step; empty if the cell failed. Throws Interrupted.
  std::vector<std::string> fingerprints(const Cell& cell);
  /// What the progress line called the last cell: "[3/11] dp 2".
  const std::string& last_title() const { return last_title_; }

 private:
  const Training& options_;
  std::string folder_;
  ProgressLine& line_;
  int cells_;
  int done_ = 0;
  std::string last_title_;
};

/// One row from the runs of a cell's repeats: medians; all epochs in epoch_s. A failed repeat fails the row.
Run combined(const std::vector<Run>& repeats);

/// The first step whose fingerprints differ; none if one list is empty or nothing differs.
std::optional<std::int64_t> first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b);

}  // namespace duet::cli
