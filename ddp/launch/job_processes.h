// The processes of a job, seen from its launcher: the ranks' and the guard that kills them when the launcher has died;
// and signals to the launcher.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/descriptor.h"
#include "lib/monotonic.h"

namespace duet::ddp {

struct Pipe {
  Descriptor read, write;  // close-on-exec; reading never blocks
};
/// Throws CommError when there are no descriptors left.
Pipe make_pipe();

/// Hands on what a pipe brings in whole lines. Of a line that is redrawn after carriage returns (a progress bar), hands
/// on the last state, also if it is erased, and before it one a second.
class LineReader {
 public:
  LineReader() = default;
  explicit LineReader(Descriptor source) : source_(std::move(source)) {}
  int descriptor() const { return source_.get(); }
  bool open() const { return source_.open(); }
  /// Reads what is there; closes the source at its end. A last line without an end counts as one.
  void read(const std::function<void(std::string_view line)>& on_line);

 private:
  void hand_on_lines(const std::function<void(std::string_view line)>& on_line);
  void hand_on_state(const std::function<void(std::string_view line)>& on_line);

  Descriptor source_;
  std::string rest_;
  std::string state_;            // the last one of a line that is redrawn, unless it was handed on
  bool erased_ = false;          // the rank has blanked its line since
  Clock::time_point redrawn_{};  // when a state of a line was handed on
};

class RankProcess {
 public:
  /// Starts `command` with exactly these variables, on these cores (none: on all). Throws UsageError when the program
  /// cannot be run, and CommError with `name` when no process can be made. Kills the process group when destroyed
  /// before the process has ended.
  RankProcess(const std::string& name, const std::vector<std::string>& command,
              const std::vector<std::string>& environment, const std::vector<int>& cores = {});
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess();

  /// Polls whether the process has ended; never blocks.
  bool look();
  /// The result of the last look().
  bool ended() const { return ended_; }
  /// Whether a signal has stopped the process, and nothing has let it go on.
  bool stopped() const;
  /// The signal that killed the process or 0, and its exit code; both are valid once it has ended.
  int signal() const;
  int exit_code() const;
  /// Sends a signal to its whole process group.
  void send(int signal) const;
  /// Becomes readable when the process ends; -1 where the kernel has no such thing.
  int end_descriptor() const { return end_.get(); }
  LineReader& output() { return lines_[0]; }
  LineReader& errors() { return lines_[1]; }

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  Descriptor end_;
  std::array<LineReader, 2> lines_;
};

/// Returns whether a job continues after this signal to its launcher, unless a rank ends by it: schedulers send it
/// before a time limit, or to continue what they have stopped.
constexpr bool is_left_to_ranks(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGXCPU || signal == SIGCONT;
}

/// Turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into bytes of a pipe for as long as it lives, SIGPIPE unless the program
/// ignores it (a write to an output that nothing reads fails then), and those of is_left_to_ranks() unless the program
/// ignores or handles them. One at a time in a process, else UsageError.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  int descriptor() const { return pipe_.read.get(); }
  /// Readable once a signal has come that isn't left to the ranks, and from then on.
  int ending() const { return ending_.get(); }
  /// The next signal that came, or 0.
  int next() const;

 private:
  static constexpr std::array kSignals = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                                          SIGUSR1, SIGUSR2, SIGXCPU, SIGCONT};
  Pipe pipe_;
  Descriptor ending_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// Set for every process of a job to a name that no other job has; what they start inherits it.
inline constexpr const char* kJobVariable = "DUET_JOB";

/// The full name of a job that this process starts: it begins with that of the job that this process is in, if any, so
/// that ending the outer one ends the inner one's processes, its launcher and guard included.
std::string job_within(const std::string& name);

/// Kills all processes of this user that were started with DUET_JOB=`job` or in a job within it, this one excepted,
/// until there are none: also those that have left their process group, session and parent. Finds none without /proc,
/// and before Linux 5.1. Calls nothing but system calls. Returns how many were found.
int end_processes_of(const std::string& job) noexcept;

/// A process that does so as soon as this one has died, for any reason, and does nothing else.
class JobGuard {
 public:
  /// Throws CommError when no process can be made.
  explicit JobGuard(const std::string& job);
  ~JobGuard();
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;

  /// Starts another process if this one has ended, and returns how it ended; empty if it runs. Throws CommError, after
  /// which there is none.
  std::string replace_if_ended();

 private:
  void start();
  const std::string text_;  // in the environment of the job's processes
  pid_t pid_ = -1;
  Descriptor alive_;  // the end of a pipe that closes with this process
};

}  // namespace duet::ddp
