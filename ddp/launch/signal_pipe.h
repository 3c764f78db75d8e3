// Signals to this process as something that poll() can wait for.
#pragma once

#include <signal.h>

#include <array>

#include "ddp/launch/rank_process.h"

namespace duet::ddp {

/// Turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into bytes of a pipe for as long as it lives. One at a time in a process,
/// else UsageError.
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
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  Pipe pipe_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace duet::ddp
