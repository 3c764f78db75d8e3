// Signals: Ctrl-C, SIGTERM, those that schedulers send before a time limit, and a closed standard output, noted by the
// handler and handled at the end of the step; and those of failed accesses to files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/monotonic.h"

namespace duet::cli {

/// From now on the first SIGINT or SIGTERM is only noted; a second one ends the process at once. SIGUSR1, SIGUSR2 and
/// SIGXCPU are noted each time, unless they were ignored when this program started.
void note_signals();
/// From now on a write to a standard output whose reader has closed it fails, and SIGPIPE is noted. SIGPIPE that was
/// ignored when this program started stays ignored.
void note_closed_output();
/// From now on these signals and SIGPIPE end the process at once; one that was noted before does so now.
void end_by_signals();
/// The signal that was noted, or 0.
int noted_signal();

/// Thrown when a signal asked to end.
struct Interrupted {
  int signal;
};

/// From now on a write beyond the limit of a file's size (ulimit -f) fails with an error, and SIGXFSZ does not end the
/// process.
void fail_beyond_size_limit();

/// From now on SIGBUS, which still ends the process, is explained on stderr: a file that is mapped into memory, of
/// images or of a network, may have become shorter.
void explain_bus_errors();

/// Ends all ranks after the same step, although a signal reaches each of them in another one, or one rank alone.
/// They exchange their signals about every 0.1 s, counted in steps, so that all exchange after the same ones.
class CommonEnd {
 public:
  /// `sum` adds numbers up over all ranks, on all ranks.
  explicit CommonEnd(std::function<void(std::span<double>)> sum);

  /// Whether the ranks exchange their signals now. Asked once per step, or for several steps at once.
  bool due() { return ++asked_ >= next_; }
  /// Called on all ranks when due, each with the signal that it has noted itself, or 0.
  void exchange(int own, int rank, int ranks);
  /// What any rank had noted at the last exchange, the same on all ranks; 0: nothing.
  int signal() const { return signal_; }
  /// The ranks that had noted it, the same on all ranks.
  const std::vector<int>& signalled() const { return signalled_; }
  /// When the next exchange is due: the same on all ranks.
  void stream(StateStream& state);

 private:
  std::int64_t next_interval(int ranks);

  std::function<void(std::span<double>)> sum_;
  Clock::time_point last_ = Clock::now();
  std::int64_t asked_ = 0, next_ = 1, interval_ = 1;
  std::int64_t exchanged_ = 0;  // asked_ at the last exchange
  int signal_ = 0;
  std::vector<int> signalled_;
};

}  // namespace duet::cli
