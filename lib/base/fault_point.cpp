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

/// The parts of a text between colons, of which there may be fewer than `count`.
std::vector<std::string> fields_of(const std::string& text, std::size_t count) {
  std::vector<std::string> fields(count);
  std::istringstream in(text);
  for (std::string& field : fields) std::getline(in, field, ':');
  return fields;
}

int number_of(const std::string& text) { return parse_number<int>(text).value_or(0); }

Fault fault_of(const std::string& text) {
  const std::vector<std::string> fields = fields_of(text, 5);
  return {fields[0], fields[1], number_of(fields[2]), number_of(fields[3]), number_of(fields[4])};
}

/// Returns those for this process.
std::vector<Fault>& faults() {
  static std::vector<Fault> own = [] {
    std::vector<Fault> found;
    const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT");
    if (!restarts.empty() && restarts != "0") return found;
    const int replacement = number_of(variable("DUET_REPLACEMENT"));
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
    const std::vector<std::string> fields = fields_of(variable("DUET_DELAY"), 3);
    return Delay{fields[0], fields[1], std::chrono::microseconds(number_of(fields[2]))};
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
