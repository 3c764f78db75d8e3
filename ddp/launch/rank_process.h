// One rank's process, seen from the launcher, and signals to the launcher.
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

namespace duet::ddp {

struct Pipe {
  Descriptor read, write;  // close-on-exec; reading never blocks
};
/// Throws CommError when there are no descriptors left.
Pipe make_pipe();

/// Hands on what a pipe brings in whole lines.
class LineReader {
 public:
  LineReader() = default;
  explicit LineReader(Descriptor source) : source_(std::move(source)) {}
  int descriptor() const { return source_.get(); }
  bool open() const { return source_.open(); }
  /// Reads what is there; closes the source at its end. A last line without an end counts as one.
  void read(const std::function<void(std::string_view line)>& on_line);

 private:
  Descriptor source_;
  std::string rest_;
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
  /// Of an ended process: the signal that killed it or 0, and the exit code.
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

/// Turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into bytes of a pipe for as long as it lives, and SIGPIPE unless the
/// program ignores it: a write to an output that nothing reads fails then. One at a time in a process, else UsageError.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  int descriptor() const { return pipe_.read.get(); }
  /// The next signal that came, or 0.
  int next() const;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
  Pipe pipe_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace duet::ddp
