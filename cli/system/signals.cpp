#include "cli/system/signals.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <utility>

#include "lib/monotonic.h"

namespace duet::cli {
namespace {

constexpr std::chrono::duration<double> kInterval{0.1};

std::atomic<int> noted{0};  // written by a signal handler, read by all threads
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

/// The failed access is repeated after the handler returns, and then ends the process.
void explain(int) {
  constexpr std::string_view kText =
      "duet: a file that is mapped into memory has become shorter, or its disk or memory has failed\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
}

/// A second signal, or a repeated access, finds the default action.
void handle_once(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void note_signals() {
  handle_once(SIGINT, note);
  handle_once(SIGTERM, note);
}

void end_by_signals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  if (noted != 0) std::raise(noted);
}

int noted_signal() { return noted; }

void explain_bus_errors() { handle_once(SIGBUS, explain); }

CommonEnd::CommonEnd(int rank, int size, std::function<void(std::span<double>)> sum)
    : rank_(rank), size_(size), sum_(std::move(sum)) {}

void CommonEnd::exchange(int own) {
  std::array<double, 3> numbers = {own == SIGINT ? 1.0 : 0, own == SIGTERM ? 1.0 : 0, 0};
  if (rank_ == 0) numbers[2] = static_cast<double>(next_interval());
  sum_(numbers);
  next_ = asked_ + static_cast<std::int64_t>(numbers[2]);
  if (numbers[0] + numbers[1] == 0) return;
  signal_ = numbers[1] > 0 ? SIGTERM : SIGINT;
  find_signalled(own);
}

/// By a second sum with an element per rank, made only when the run ends.
void CommonEnd::find_signalled(int own) {
  std::vector<double> received(static_cast<std::size_t>(size_), 0);
  received[static_cast<std::size_t>(rank_)] = own == signal_ ? 1 : 0;
  sum_(received);
  signalled_.clear();
  for (int rank = 0; rank < size_; ++rank)
    if (received[static_cast<std::size_t>(rank)] > 0) signalled_.push_back(rank);
}

/// Of rank 0's choice: as many steps as took kInterval lately, at most twice as many as before.
std::int64_t CommonEnd::next_interval() {
  if (size_ == 1) return 1;
  const auto now = Clock::now();
  const std::chrono::duration<double> taken = now - std::exchange(last_, now);
  const double fitting = kInterval / taken * static_cast<double>(interval_);
  interval_ = static_cast<std::int64_t>(std::clamp(fitting, 1.0, 2.0 * static_cast<double>(interval_)));
  return interval_;
}

}  // namespace duet::cli
