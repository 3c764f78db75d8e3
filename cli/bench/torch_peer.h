// PyTorch's step of the same network, run under a user-supplied Python.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/system/child_process.h"
#include "lib/base/descriptor.h"

namespace duet::cli {

/// A way of running it. `threads` are each rank's.
struct TorchWay {
  int ranks = 1, threads = 1;
  bool tuned = false;  // channels_last and a malloc that keeps memory, else defaults
};

/// What it trains: duet's name of the network, its images' rows and columns, its outputs and its stem.
struct TorchNetwork {
  std::string model = "simple_cnn";
  std::int64_t image_size = 28, classes = 10;
  std::string stem = "imagenet";
};

/// Runs tools/torch_peer.py, of which this program carries a copy, parked between bursts of steps.
class TorchPeer {
 public:
  /// Starts it under `python` (a path, or a name on PATH), with files whose names begin with `files`.
  TorchPeer(const std::string& python, const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
            const std::string& files);

  /// Waits until its first step is over and it is parked. Returns why that failed, else nothing. Throws Interrupted,
  /// and DataError where it writes something else than its times.
  const std::string& wait();
  /// Of one burst, every step in us; empty where it has failed. Throws as wait().
  std::vector<double> burst(int steps);
  const std::string& error() const { return error_; }
  const std::string& version() const { return version_; }  // PyTorch's
  double startup_s() const { return startup_s_; }

 private:
  /// Of the file that it writes when it is parked, here after the bursts_-th burst.
  std::vector<double> read_times();

  std::string files_, error_, version_;
  double startup_s_ = 0;
  int bursts_ = 0;
  std::vector<Descriptor> commands_;  // FIFO of each rank
  Child child_;
};

/// Throws UsageError that says why `python` cannot import torch, or torchvision where the network is its.
void require_torch(const std::string& python, const std::string& folder, const TorchNetwork& network = {});

/// "torch", "torch, tuned", "torch ddp", ...
std::string name(const TorchWay& way);

}  // namespace duet::cli
