#include "cli/system/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <utility>

#include "lib/base/closed_output.h"
#include "lib/monotonic.h"

namespace duet::cli {
namespace {

constexpr std::chrono::duration<double> kInterval{0.1};
constexpr std::array kNoted = {SIGPIPE, SIGINT, SIGTERM};  // the last one counts where ranks got different ones

std::atomic<int> noted{0};  // written by a signal handler, read by all threads
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

void note_if_output_closed(int signal) {
  const int saved = errno;
  if (output_is_closed()) note(signal);
  errno = saved;
}

/// The call that the signal is of fails, and says why.
void leave_to_error(int) {}

struct sigaction action_of(void (*handler)(int), unsigned flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(flags | SA_RESTART);
  sigemptyset(&action.sa_mask);
  return action;
}

/// A second signal finds the default action.
void handle_once(int signal, void (*handler)(int)) {
  const struct sigaction action = action_of(handler, SA_RESETHAND);
  sigaction(signal, &action, nullptr);
}

/// Unlike one that is ignored, a signal with a handler has its default action in the programs that this one starts. One
/// that was ignored when this program started stays ignored.
void handle_unless_ignored(int signal, void (*handler)(int)) {
  const struct sigaction action = action_of(handler, 0);
  struct sigaction before {};
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

}  // namespace

void note_signals() {
  handle_once(SIGINT, note);
  handle_once(SIGTERM, note);
}

void note_closed_output() { handle_unless_ignored(SIGPIPE, note_if_output_closed); }

void end_by_signals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  handle_unless_ignored(SIGPIPE, SIG_DFL);
  if (noted != 0) std::raise(noted);
}

int noted_signal() { return noted; }

void fail_beyond_size_limit() { handle_unless_ignored(SIGXFSZ, leave_to_error); }

CommonEnd::CommonEnd(int rank, int size, std::function<void(std::span<double>)> sum)
    : rank_(rank), size_(size), sum_(std::move(sum)) {}

void CommonEnd::exchange(int own) {
  std::array<double, kNoted.size() + 1> numbers{};
  for (std::size_t i = 0; i < kNoted.size(); ++i) numbers[i] = own == kNoted[i] ? 1 : 0;
  if (rank_ == 0) numbers.back() = static_cast<double>(next_interval());
  sum_(numbers);
  next_ = asked_ + static_cast<std::int64_t>(numbers.back());
  for (std::size_t i = 0; i < kNoted.size(); ++i)
    if (numbers[i] > 0) signal_ = kNoted[i];
  if (signal_ != 0) find_signalled(own);
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
