// PyTorch's step of the same network: under a user-supplied Python, and by LibTorch from C++.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/system/child_process.h"
#include "lib/base/descriptor.h"
#include "measure/run.h"

namespace duet::cli {

/// A way of running it. `threads` are each rank's.
struct TorchWay {
  /// What runs the step, and brings the ranks' gradients together: Python and its DistributedDataParallel, over Gloo or
  /// over duet; or C++ with LibTorch, and duet's wrapper for its modules or one all_reduce per parameter.
  enum class By : std::uint8_t { python, python_over_duet, libtorch, libtorch_averaged };

  int ranks = 1, threads = 1;
  bool tuned = false;  // Python: channels_last and a malloc that keeps memory, else defaults
  By by = By::python;
  std::string backend = "auto";  // of the ranks of C++

  bool is_python() const { return by == By::python || by == By::python_over_duet; }
};

/// What it trains: duet's name of the network, its images' rows and columns, its outputs and its stem.
struct TorchNetwork {
  std::string model = "simple_cnn";
  std::int64_t image_size = 28, classes = 10;
  std::string stem = "imagenet";
  std::string script{};  // the same as TorchScript, for C++: see export_script()
};

/// What a burst of steps measured, in microseconds: steps are rank 0's, parts the means over all ranks.
struct TorchBurst {
  std::vector<double> steps_us{};
  std::vector<double> alone_us{};  // as many more whose gradients were not brought together; empty for one rank
  /// Means: forward (with the loss), backward, communication (what backward did not hide), update (all else).
  StepParts parts{};
  double communication_us = 0;  // hidden or not
  double moving_us = 0;         // not hidden, of the rank that comes last in each step, which waits for none
};

/// Runs tools/torch_peer.py, of which this program carries a copy, or this program's ranks of LibTorch, parked between
/// bursts of steps.
class TorchPeer {
 public:
  /// Starts it, Python as `python` (a path, or a name on PATH), with files whose names begin with `files`.
  TorchPeer(const std::string& python, const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
            const std::string& files);

  /// Waits until its first step is over and it is parked. Returns why that failed, else nothing. Throws Interrupted,
  /// and DataError where it writes something else than its times.
  const std::string& wait();
  /// Without steps where it has failed. Throws as wait().
  TorchBurst burst(int steps);
  const std::string& error() const { return error_; }
  const std::string& version() const { return version_; }  // PyTorch's
  double startup_s() const { return startup_s_; }

 private:
  /// Of the file that it writes when it is parked, here after the bursts_-th burst.
  TorchBurst read_times();

  std::string files_, error_, version_;
  double startup_s_ = 0;
  int bursts_ = 0;
  std::vector<Descriptor> commands_;  // FIFO of each rank
  Child child_;
};

/// Throws UsageError that says why `python` cannot import torch, or torchvision where the network is its.
void require_torch(const std::string& python, const std::string& folder, const TorchNetwork& network = {});

/// Why `python` cannot import the package duet_torch; empty where it can.
std::string why_no_duet_torch(const std::string& python, const std::string& folder);

/// Writes the network as TorchScript to the path `network.script`, and what its steps are made of beside it. Returns
/// why that failed, else nothing. Throws Interrupted.
std::string export_script(const std::string& python, const std::string& folder, const TorchNetwork& network,
                          std::int64_t batch);

/// "torch", "torch, tuned", "torch ddp", "torch ddp over duet", "LibTorch + duet", ...
std::string name(const TorchWay& way);

}  // namespace duet::cli
