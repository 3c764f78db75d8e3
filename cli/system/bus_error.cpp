#include "cli/system/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace duet::cli {
namespace {

// The handler makes system calls only: whatever the thread did when the signal came, it holds no lock here.

/// A line of /proc/self/maps; of one that is longer, its begin.
struct Line {
  std::array<char, 4352> text;
  std::size_t size = 0;

  void add(char one) {
    if (size < text.size()) text[size++] = one;
  }
  std::string_view view() const { return {text.data(), size}; }
};

/// The path in a line "7f00-7f80 r-xp 00000000 08:01 123   /a/b" if it maps the address; else empty.
std::string_view path_at(std::uintptr_t address, std::string_view line) {
  std::uintptr_t first = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto [dash, wrong] = std::from_chars(line.data(), last, first, 16);
  if (wrong != std::errc() || dash == last || std::from_chars(dash + 1, last, end, 16).ec != std::errc()) return {};
  const std::size_t path = line.find('/');
  return first <= address && address < end && path != std::string_view::npos ? line.substr(path) : std::string_view();
}

/// The file that is mapped at an address; empty where there is none.
std::string_view mapped_file(std::uintptr_t address, Line& line) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 4096> bytes;
  for (ssize_t got; (got = ::read(maps, bytes.data(), bytes.size())) > 0;) {
    for (const char byte : std::string_view(bytes.data(), static_cast<std::size_t>(got))) {
      if (byte != '\n') {
        line.add(byte);
        continue;
      }
      if (const std::string_view path = path_at(address, line.view()); !path.empty()) return path;
      line.size = 0;
    }
  }
  return {};
}

/// The failed access is repeated after the handler returns, and then ends the process.
void explain(int signal, siginfo_t* info, void*) {
  if (info->si_code <= 0) {  // sent by a process, by no access
    ::raise(signal);
    return;
  }
  Line line, text;
  const std::string_view file = mapped_file(reinterpret_cast<std::uintptr_t>(info->si_addr), line);
  for (const std::string_view part : {std::string_view("duet: "), file.empty() ? std::string_view("a file") : file,
                                      std::string_view(" is mapped into memory and has become shorter, or its disk or "
                                                       "memory has failed: signal 7 (SIGBUS)\n")})
    for (const char byte : part) text.add(byte);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.text.data(), text.size);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_SIGINFO);
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace duet::cli
