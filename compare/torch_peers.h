// PyTorch's rows of a comparison: its step of the same network under a user-supplied Python, and by LibTorch from C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/cells.h"
#include "compare/parked_cell.h"
#include "train/options/options.h"

namespace duet::cli {

/// Cells of "torch", "torch tuned" (channels_last, and a malloc that keeps memory), "torch ddp", "torch ddp tuned",
/// "torch ddp over duet" (the package duet_torch as torch.distributed's backend), run by tools/torch_peer.py; and of
/// "LibTorch", "LibTorch + duet" (duet's wrapper for its modules), "LibTorch averaged" (an all_reduce for each
/// parameter), run by `duet train --libtorch`.
class TorchPeers {
 public:
  /// Finds out what --vs-torch can run. Files go to `folder`. Throws UsageError that says why it cannot import torch,
  /// or torchvision where the network is its; and Interrupted.
  TorchPeers(const CompareOptions& options, std::string folder);

  /// For every number of cores that one of `rows` takes, PyTorch on as many: as ranks of DDP and as threads.
  std::vector<Cell> cells(const std::vector<Cell>& rows);
  /// Starts a cell, and waits until its first step is over and it is parked. Throws Interrupted.
  TrainedCell start(const Cell& cell);
  /// The versions of what was started, and which of cells() are missing and why.
  std::vector<std::string> notes() const;

 private:
  std::vector<std::string> arguments_of(const Cell& cell) const;
  std::vector<std::string> script_arguments(std::int64_t batch) const;

  const CompareOptions& options_;
  std::string folder_, script_, network_;
  std::int64_t image_size_, classes_;
  std::string no_package_, no_libtorch_, no_script_;  // why
  std::string version_, libtorch_version_;
  bool several_ranks_ = false;
  int started_ = 0;
};

/// A burst of such a cell, from rank 0's answer. Throws DataError where that is something else.
Run torch_burst_of(const std::string& answer);

}  // namespace duet::cli
