// Where a training stands: on the terminal, in a file, or to the launcher of this rank.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "cli/options/options.h"
#include "cli/system/terminal.h"
#include "cli/train/training_loop.h"
#include "ddp/launch/launch.h"
#include "lib/base/descriptor.h"
#include "lib/monotonic.h"

namespace duet::cli {

/// Reports the training of this process at most ten times a second: into the file of --progress, as lines on stderr
/// where a ProgressRelay reads them, else on the terminal's progress line. Not thread safe.
class ProgressReporter {
 public:
  /// Only rank 0, the leader, reports.
  ProgressReporter(const TrainOptions& options, bool leader);

  void report(const StepClock& clock, int epoch, int epochs);
  /// Removes the progress line, so that other output can follow.
  void clear() { line_.clear(); }

 private:
  std::string title_;
  ProgressLine line_;
  ddp::Descriptor file_;
  bool relayed_ = false;
  Clock::time_point last_{};
};

/// In the process that launches ranks from a terminal: shows the progress that rank 0 reports, and passes the ranks'
/// lines and the launcher's on around it.
class ProgressRelay {
 public:
  explicit ProgressRelay(const TrainOptions& options);
  ProgressRelay(const ProgressRelay&) = delete;
  ProgressRelay& operator=(const ProgressRelay&) = delete;
  /// For ddp::spawn() during this object's lifetime; nothing is relayed where stderr is no terminal.
  ddp::LaunchOptions launch_options();

 private:
  void pass_on(int rank, bool is_stderr, std::string_view text);

  std::string title_;
  TerminalStyle style_;
  std::mutex line_mutex_;  // lines and remarks come in two threads
  ProgressLine line_;
};

}  // namespace duet::cli
