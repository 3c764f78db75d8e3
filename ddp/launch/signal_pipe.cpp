#include "ddp/launch/signal_pipe.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "lib/error.h"

namespace duet::ddp {
namespace {

std::atomic<int> signal_pipe{-1};

void note_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe.load(), &byte, 1);
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe() : pipe_(make_pipe()) {
  int none = -1;
  require<UsageError>(signal_pipe.compare_exchange_strong(none, pipe_.write.get()), "one launch at a time");
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

SignalPipe::~SignalPipe() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  signal_pipe.store(-1);
}

int SignalPipe::next() const {
  unsigned char byte = 0;
  return ::read(pipe_.read.get(), &byte, 1) == 1 ? byte : 0;
}

}  // namespace duet::ddp
