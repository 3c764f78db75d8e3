#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/trace.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

TraceEvent event(const char* name, std::int64_t begin_ns, std::int64_t end_ns) {
  return {.name = name, .begin_ns = begin_ns, .end_ns = end_ns};
}

std::string names(const std::vector<TraceEvent>& events) {
  std::string text;
  for (const TraceEvent& each : events) text += each.name;
  return text;
}

}  // namespace

TEST_CASE("a trace is read from a position on, in the order of begin, outer before inner") {
  Trace::add(event("x", 1, 2));
  const std::uint64_t begin = Trace::position();
  Trace::add(event("c", 5, 6));
  Trace::add(event("b", 2, 3));
  Trace::add(event("a", 2, 9));
  std::vector<TraceEvent> events;
  CHECK(Trace::read(begin, events) == begin + 3);
  CHECK(names(events) == "abc");
  Trace::add(event("d", 1, 2));
  CHECK(Trace::read(begin + 3, events) == begin + 4);
  CHECK(names(events) == "d");
  Trace::read(begin, events);
  CHECK(names(events) == "dabc");
  CHECK(Trace::read(begin + 4, events) == begin + 4);
  CHECK(events.empty());
}

TEST_CASE("a full trace keeps the newest events") {
  Trace::add(event("x", 1, 2));
  const std::uint64_t begin = Trace::position();
  Trace::keep(3);
  std::vector<TraceEvent> events;
  Trace::read(0, events);
  CHECK(events.empty());
  for (const char* name : {"a", "b"}) Trace::add(event(name, name[0], name[0] + 1));
  Trace::read(0, events);
  CHECK(names(events) == "ab");
  for (const char* name : {"c", "d", "e"}) Trace::add(event(name, name[0], name[0] + 1));
  CHECK(Trace::read(begin, events) == begin + 5);
  CHECK(names(events) == "cde");
  Trace::read(begin + 3, events);
  CHECK(names(events) == "de");
}

TEST_CASE("spans trace the time until their destruction, on any thread") {
  const std::uint64_t begin = Trace::position();
  const std::int64_t before = monotonic_ns();
  std::thread([] { const TraceSpan span("thread", {DeviceKind::cpu, 3}, TraceEvent::Kind::communication, 7); }).join();
  const std::int64_t after = monotonic_ns();
  std::vector<TraceEvent> events;
  Trace::read(begin, events);
  REQUIRE(events.size() == 1);
  CHECK(events[0].device == Device{DeviceKind::cpu, 3});
  CHECK(events[0].kind == TraceEvent::Kind::communication);
  CHECK(events[0].amount == 7);
  CHECK(before <= events[0].begin_ns);
  CHECK(events[0].begin_ns <= events[0].end_ns);
  CHECK(events[0].end_ns <= after);
}
