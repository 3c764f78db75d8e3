#include "cli/signals.h"

#include <atomic>
#include <csignal>

namespace duet::cli {
namespace {

std::atomic<int> noted{0};  // written by a signal handler, read by all threads
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

}  // namespace

void note_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int noted_signal() { return noted; }

}  // namespace duet::cli
