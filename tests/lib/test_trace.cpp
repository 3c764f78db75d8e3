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

TEST_CASE("a trace holds what happens from its start to its end, outer before inner") {
  Trace::add(event("x", 1, 2));
  CHECK_FALSE(Trace::on());
  Trace::start(10);
  CHECK(Trace::on());
  Trace::add(event("c", 5, 6));
  Trace::add(event("b", 2, 3));
  Trace::add(event("a", 2, 9));
  CHECK(names(Trace::take()) == "abc");
  Trace::add(event("x", 1, 2));
  CHECK(Trace::take().empty());
}

TEST_CASE("a full trace keeps the newest events") {
  Trace::start(3);
  for (const char* name : {"a", "b", "c", "d", "e"}) Trace::add(event(name, name[0], name[0] + 1));
  CHECK(names(Trace::take()) == "cde");
}

TEST_CASE("spans trace the time until their destruction, on any thread") {
  Trace::start(100);
  const std::int64_t before = monotonic_ns();
  std::thread([] { const TraceSpan span("thread", {DeviceKind::cpu, 3}, TraceEvent::Kind::communication, 7); }).join();
  const std::int64_t after = monotonic_ns();
  const std::vector<TraceEvent> events = Trace::take();
  REQUIRE(events.size() == 1);
  CHECK(events[0].device == Device{DeviceKind::cpu, 3});
  CHECK(events[0].kind == TraceEvent::Kind::communication);
  CHECK(events[0].amount == 7);
  CHECK(before <= events[0].begin_ns);
  CHECK(events[0].begin_ns <= events[0].end_ns);
  CHECK(events[0].end_ns <= after);
}
