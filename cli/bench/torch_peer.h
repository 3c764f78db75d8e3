// PyTorch's step of the same network, run under a user-supplied Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/system/child_process.h"

namespace duet::cli {

/// A way of running it. `threads` are each rank's.
struct TorchWay {
  int ranks = 1, threads = 1;
  bool tuned = false;  // channels_last and a malloc that keeps memory, else defaults
};

struct TorchRun : ChildEnd {
  std::string version{};  // PyTorch's
  double startup_s = 0;
  std::vector<double> steps_us{};
};

/// Runs tools/torch_peer.py, of which this program carries a copy, under `python` (a path, or a name on PATH), with its
/// files in `folder`.
TorchRun run_torch(const std::string& python, const TorchWay& way, std::int64_t batch, int steps,
                   const std::string& folder);

/// Throws UsageError that says why `python` cannot import torch.
void require_torch(const std::string& python, const std::string& folder);

/// "torch", "torch, tuned", "torch ddp", ...
std::string name(const TorchWay& way);

}  // namespace duet::cli
