#include "train/system/signals.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/base/descriptor.h"

namespace duet::cli {
namespace {

constexpr std::chrono::duration<double> kInterval{0.1};
constexpr std::array kBeforeLimit = {SIGUSR1, SIGUSR2, SIGXCPU};  // schedulers send them before a time limit
// The last one counts where ranks got different ones.
constexpr std::array kNoted = {SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU, SIGINT, SIGTERM};

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

// The handler of SIGBUS makes system calls only: whatever the thread did when it came, it holds no lock here.

using Line = std::array<char, 4352>;  // a line of /proc/self/maps, or the begin of one that is longer

/// The path in a line "7f00-7f80 r-xp 00000000 08:01 123   /a/b" if it maps the address; else empty.
std::string_view path_at(std::uintptr_t address, std::string_view line) {
  std::uintptr_t first = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto [dash, wrong] = std::from_chars(line.data(), last, first, 16);
  if (wrong != std::errc() || dash == last || std::from_chars(dash + 1, last, end, 16).ec != std::errc()) return {};
  const std::size_t path = line.find('/');
  return first <= address && address < end && path != std::string_view::npos ? line.substr(path) : std::string_view();
}

/// The file that is mapped at an address; "a file" where there is none.
std::string_view mapped_file(std::uintptr_t address, Line& line) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::size_t size = 0;
  for (char byte = 0; ::read(maps, &byte, 1) == 1;) {
    if (byte != '\n') {
      if (size < line.size()) line[size++] = byte;
      continue;
    }
    if (const std::string_view path = path_at(address, {line.data(), size}); !path.empty()) return path;
    size = 0;
  }
  return "a file";
}

/// The failed access is repeated after the handler returns, and then ends the process.
void explain_bus_error(int signal, siginfo_t* info, void*) {
  if (info->si_code <= 0) {  // sent by a process, by no access
    ::raise(signal);
    return;
  }
  Line line;
  const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  const std::array text = {part("duet: "), part(mapped_file(reinterpret_cast<std::uintptr_t>(info->si_addr), line)),
                           part(" is mapped into memory and has become shorter, or its disk or memory has failed: "
                                "signal 7 (SIGBUS)\n")};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, text.data(), static_cast<int>(text.size()));
}

}  // namespace

void note_signals() {
  handle_once(SIGINT, note);
  handle_once(SIGTERM, note);
  for (const int signal : kBeforeLimit) handle_unless_ignored(signal, note);  // SIGXCPU comes once a second
}

void note_closed_output() { handle_unless_ignored(SIGPIPE, note_if_output_closed); }

void end_by_signals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  for (const int signal : kBeforeLimit) handle_unless_ignored(signal, SIG_DFL);
  handle_unless_ignored(SIGPIPE, SIG_DFL);
  if (noted != 0) std::raise(noted);
}

int noted_signal() { return noted; }

void fail_beyond_size_limit() { handle_unless_ignored(SIGXFSZ, leave_to_error); }

void explain_bus_errors() {
  struct sigaction action = action_of(SIG_DFL, SA_RESETHAND | SA_SIGINFO);
  action.sa_sigaction = explain_bus_error;
  sigaction(SIGBUS, &action, nullptr);
}

CommonEnd::CommonEnd(std::function<void(std::span<double>)> sum) : sum_(std::move(sum)) {}

/// The sum has an element per rank, its signal, and rank 0's choice of the next interval.
void CommonEnd::exchange(int own, int rank, int ranks) {
  std::vector<double> numbers(static_cast<std::size_t>(ranks) + 1, 0);
  numbers[static_cast<std::size_t>(rank)] = own;
  if (rank == 0) numbers.back() = static_cast<double>(next_interval(ranks));
  sum_(numbers);
  next_ = asked_ + static_cast<std::int64_t>(numbers.back());
  numbers.pop_back();
  for (const int signal : kNoted)
    if (std::find(numbers.begin(), numbers.end(), signal) != numbers.end()) signal_ = signal;
  signalled_.clear();
  for (std::size_t one = 0; one < numbers.size(); ++one)
    if (signal_ != 0 && numbers[one] == signal_) signalled_.push_back(static_cast<int>(one));
}

void CommonEnd::stream(StateStream& state) {
  for (std::int64_t* const number : {&asked_, &next_, &interval_, &exchanged_}) state.value(*number);
}

/// The interval that rank 0 chooses: as many steps as took kInterval lately, at most twice as many as before.
std::int64_t CommonEnd::next_interval(int ranks) {
  if (ranks == 1) return 1;
  const auto now = Clock::now();
  const std::chrono::duration<double> taken = now - std::exchange(last_, now);
  const std::int64_t steps = std::max<std::int64_t>(1, asked_ - std::exchange(exchanged_, asked_));
  const double fitting = kInterval / taken * static_cast<double>(steps);
  interval_ = static_cast<std::int64_t>(std::clamp(fitting, 1.0, 2.0 * static_cast<double>(interval_)));
  return interval_;
}

}  // namespace duet::cli
