// The cells of a comparison: a mode on a number of devices, each run in processes of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/measure/run.h"
#include "train/options/options.h"
#include "train/system/display.h"

namespace duet::cli {

struct Cell {
  /// What a cell is run for. row: a row of the report. batch_sweep, collectives, overhead: the cost model alone, which
  /// needs single on another batch, a network's all-reduces, dp on other batches. parts: a row on GPUs, its steps taken
  /// without graphs and with a wait for the device after each part. torch: PyTorch's row of the report, see TorchPeers.
  enum class Use { row, batch_sweep, collectives, overhead, parts, torch };

  Mode mode = Mode::single;
  int devices = 1;
  int threads_per_device = 1;
  std::string backend{};   // the ranks', where it is not the options'
  std::int64_t batch = 0;  // 0: the options'
  Use use = Use::row;
  std::string torch{};  // which of PyTorch's: see TorchPeers

  /// Ranks that are processes or threads.
  int ranks() const { return has_ranks(mode) ? devices : 1; }
  /// Whether it learns, else it is there to be timed only.
  bool learns() const { return mode != Mode::copies && use == Use::row; }

  bool operator==(const Cell&) const = default;
};

/// single once, then single on all `cores` where that is more threads than a device has, then the other modes on every
/// number of devices, and several ranks of ddp over every backend. Where they are timed in rounds against single, then
/// copies on every number of devices above 1.
std::vector<Cell> cells_of(const CompareOptions& options, int cores);

/// What the cost model needs besides, where single is timed in rounds: single on other batches, those of one device
/// of several included; over every backend the all-reduces of as many ranks as have cores, where ranks are processes on
/// CPU devices; and dp on the fewest devices above 1 on two smaller batches.
std::vector<Cell> model_cells_of(const CompareOptions& options, int cores);

/// For every row on GPUs that is timed in rounds, the cell that takes its steps apart; none on CPU devices.
std::vector<Cell> part_cells_of(const CompareOptions& options, const std::vector<Cell>& rows);

/// "dp 2", "ddp 2, gloo", "single, all cores": no two cells of a comparison have the same.
std::string title(const Training& options, const Cell& cell);

/// The command line of `duet train` for a cell.
std::vector<std::string> cell_arguments(const Training& options, const Cell& cell);

/// The row of a cell that has measured nothing yet.
Run empty_run(const Training& options, const Cell& cell);

/// The first step whose fingerprints differ; none if one list is empty or nothing differs.
std::optional<std::int64_t> first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b);

}  // namespace duet::cli
