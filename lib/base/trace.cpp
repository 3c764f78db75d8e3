#include "lib/base/trace.h"

#include <algorithm>
#include <mutex>
#include <tuple>

namespace duet {
namespace {

struct Ring {
  std::mutex mutex;
  std::vector<TraceEvent> events;  // event `first` + i lies at i % capacity
  std::size_t capacity = 1 << 12;
  std::uint64_t first = 0, next = 0;  // positions: of the first event of this capacity, of the event to come
};

Ring& ring() {
  static Ring the_ring;
  return the_ring;
}

}  // namespace

void Trace::keep(std::size_t capacity) {
  Ring& of = ring();
  const std::lock_guard lock(of.mutex);
  of.events = {};
  of.capacity = std::max<std::size_t>(1, capacity);
  of.first = of.next;
}

void Trace::add(const TraceEvent& event) {
  Ring& to = ring();
  const std::lock_guard lock(to.mutex);
  const auto at = static_cast<std::size_t>(to.next++ - to.first) % to.capacity;
  if (at < to.events.size()) {
    to.events[at] = event;
  } else {
    to.events.reserve(to.capacity);  // a step must not allocate
    to.events.push_back(event);
  }
}

std::uint64_t Trace::position() {
  Ring& of = ring();
  const std::lock_guard lock(of.mutex);
  return of.next;
}

std::uint64_t Trace::read(std::uint64_t from, std::vector<TraceEvent>& events) {
  events.clear();
  std::uint64_t next = 0;
  {
    Ring& of = ring();
    const std::lock_guard lock(of.mutex);
    next = of.next;
    for (std::uint64_t i = std::max(from, next - of.events.size()); i < next; ++i)
      events.push_back(of.events[static_cast<std::size_t>(i - of.first) % of.capacity]);
  }
  std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.begin_ns, -a.end_ns) < std::tuple(b.begin_ns, -b.end_ns);
  });
  return next;
}

}  // namespace duet
