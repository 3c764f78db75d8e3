// The parked life of a rank: bursts of steps, when a comparison asks for them. The ranks of duet, of LibTorch and of
// PyTorch (tools/torch_peer.py) have one protocol.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ddp/group/process_group.h"
#include "lib/base/descriptor.h"
#include "train/measure/run.h"
#include "train/options/options.h"
#include "train/setup.h"

namespace duet::cli {

/// The FIFOs of a rank: the comparison writes commands, a line each, and the rank answers each with a line of JSON, as
/// it does when it is first parked. A command is a number of steps to time, or 0 to rest. The comparison alone writes
/// them: where they end, so does the rank.
std::string command_fifo(const std::string& files, int rank);
std::string answer_fifo(const std::string& files, int rank);

/// The rank's side. A rank that waits for a command is blocked in the kernel: nothing spins, and no collective runs.
class BurstPort {
 public:
  /// `files`: as --bursts has it. Throws DataError.
  BurstPort(const std::string& files, int rank);

  /// Answers `ready`, then every number of steps with what `burst` returns, after which it calls `linger`; until the
  /// commands end.
  void serve(
      const std::string& ready, const std::function<std::string(int steps)>& burst,
      const std::function<void()>& linger = [] {});
  /// Whether a command waits.
  bool commanded() const;

 private:
  std::optional<int> next();
  void answer(const std::string& line);

  Descriptor commands_, answers_;
};

/// What one rank of duet measured over the timed steps of a burst. In a process of several ranks the first has the
/// process's use of cores.
struct RankBurst {
  double wall_s = 0, used_s = 0, delayed_s = 0;  // see CpuUse
  double median_us = 0;
  double spread_share = 0;   // spread of its steps' times: see fit_spread()
  std::optional<Run> run{};  // on rank 0; of copies on all
};
std::string to_json(const RankBurst& burst);
/// Throws DataError.
RankBurst rank_burst_from_json(const std::string& line);

/// Serves --bursts, all ranks the same. Each burst goes on with the training: some steps to warm up, then the timed
/// ones. With --collectives, for processes on CPU devices, it trains a few traced steps, which say what is sent when;
/// then a step is a pass over all sizes of all-reduces alone. SIGINT and SIGTERM end the process at once.
void serve_bursts(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group);

/// Starts the ranks of --libtorch, or is one of them, and serves --bursts with LibTorch's steps.
int serve_script_bursts(const TrainOptions& options);

}  // namespace duet::cli
