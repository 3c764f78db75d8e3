#include "lib/base/fault_point.h"

#ifdef DUET_FAULT_POINTS

#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "lib/base/environment.h"
#include "lib/parse_number.h"

namespace duet {
namespace {

std::string variable(const char* name) { return environment_variable(name).value_or(""); }

struct Fault {
  std::string name, rank;
  int times = 0, signal = 0;
};

struct Delay {
  std::string name, rank;
  std::chrono::microseconds time{0};

  bool at(const char* point, int replica) const {
    return name == point && (rank == "*" || rank == (replica < 0 ? variable("RANK") : std::to_string(replica)));
  }
};

/// Empty unless the fault is for this process.
const Fault& fault() {
  static const Fault wanted = [] {
    Fault fault;
    const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT"), replacement = variable("DUET_REPLACEMENT");
    std::istringstream text(variable("DUET_FAULT"));
    std::string times, signal;
    std::getline(text, fault.name, ':');
    std::getline(text, fault.rank, ':');
    std::getline(text, times, ':');
    std::getline(text, signal, ':');
    if (fault.rank != variable("RANK") || (!restarts.empty() && restarts != "0") ||
        (!replacement.empty() && replacement != "0"))
      return Fault{};
    fault.times = parse_number<int>(times).value_or(0);
    fault.signal = parse_number<int>(signal).value_or(0);
    return fault;
  }();
  return wanted;
}

const Delay& delay() {
  static const Delay wanted = [] {
    std::istringstream text(variable("DUET_DELAY"));
    std::string name, rank, time;
    std::getline(text, name, ':');
    std::getline(text, rank, ':');
    std::getline(text, time, ':');
    return Delay{name, rank, std::chrono::microseconds(parse_number<int>(time).value_or(0))};
  }();
  return wanted;
}

/// Exactly: the end of a sleep comes late, and finds the core slow.
void wait_for(std::chrono::microseconds time) {
  constexpr std::chrono::milliseconds kSpun{5};
  const auto end = std::chrono::steady_clock::now() + time;
  if (time > kSpun) std::this_thread::sleep_for(time - kSpun);
  while (std::chrono::steady_clock::now() < end) continue;
}

}  // namespace

void fault_point(const char* name, int replica) {
  static std::mutex mutex;
  static int passed = 0;
  if (!delay().name.empty() && delay().at(name, replica)) wait_for(delay().time);
  const Fault& wanted = fault();
  if (wanted.name.empty() || wanted.name != name) return;
  const std::lock_guard lock(mutex);
  if (++passed != wanted.times) return;
  std::fprintf(stderr, "rank %s is struck at %s by signal %d\n", wanted.rank.c_str(), name, wanted.signal);
  std::fflush(stderr);
  std::raise(wanted.signal);
}

}  // namespace duet

#endif
