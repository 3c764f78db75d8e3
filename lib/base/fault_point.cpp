#include "lib/base/fault_point.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/environment.h"
#include "lib/parse_number.h"

namespace duet {
namespace {

std::string variable(const char* name) { return environment_variable(name).value_or(""); }

struct Fault {
  std::string name, rank;
  int times = 0, signal = 0, replacement = 0;
  int passed = 0;
};

struct Delay {
  std::string name, rank;
  std::chrono::microseconds time{0};

  bool at(const char* point, int replica) const {
    return name == point && (rank == "*" || rank == (replica < 0 ? variable("RANK") : std::to_string(replica)));
  }
};

Fault fault_of(const std::string& text) {
  std::istringstream fields(text);
  Fault fault;
  std::string times, signal, replacement;
  std::getline(fields, fault.name, ':');
  std::getline(fields, fault.rank, ':');
  std::getline(fields, times, ':');
  std::getline(fields, signal, ':');
  std::getline(fields, replacement, ':');
  fault.times = parse_number<int>(times).value_or(0);
  fault.signal = parse_number<int>(signal).value_or(0);
  fault.replacement = parse_number<int>(replacement).value_or(0);
  return fault;
}

/// Returns those for this process.
std::vector<Fault>& faults() {
  static std::vector<Fault> own = [] {
    std::vector<Fault> found;
    const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT");
    if (!restarts.empty() && restarts != "0") return found;
    const int replacement = parse_number<int>(variable("DUET_REPLACEMENT")).value_or(0);
    std::istringstream text(variable("DUET_FAULT"));
    for (std::string one; std::getline(text, one, ',');)
      if (const Fault fault = fault_of(one); fault.rank == variable("RANK") && fault.replacement == replacement)
        found.push_back(fault);
    return found;
  }();
  return own;
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
  if (!delay().name.empty() && delay().at(name, replica)) wait_for(delay().time);
  for (Fault& fault : faults()) {
    if (fault.name != name) continue;
    const std::lock_guard lock(mutex);
    if (++fault.passed != fault.times) continue;
    std::fprintf(stderr, "rank %s is struck at %s by signal %d\n", fault.rank.c_str(), name, fault.signal);
    std::fflush(stderr);
    std::raise(fault.signal);
  }
}

}  // namespace duet
