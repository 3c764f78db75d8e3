#include "lib/base/trace.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <tuple>
#include <utility>

namespace duet {
namespace {

struct Ring {
  std::mutex mutex;
  std::vector<TraceEvent> events;
  std::size_t capacity = 0, next = 0;  // next: the oldest, once the ring is full
};

Ring& ring() {
  static Ring the_ring;
  return the_ring;
}

std::atomic<bool> is_on{false};

}  // namespace

void Trace::start(std::size_t capacity) {
  const std::lock_guard lock(ring().mutex);
  ring().events.clear();
  ring().capacity = std::max<std::size_t>(1, capacity);
  ring().next = 0;
  is_on.store(true, std::memory_order_relaxed);
}

bool Trace::on() { return is_on.load(std::memory_order_relaxed); }

void Trace::add(const TraceEvent& event) {
  if (!on()) return;
  Ring& to = ring();
  const std::lock_guard lock(to.mutex);
  if (to.events.size() < to.capacity) return to.events.push_back(event);
  to.events[to.next] = event;
  to.next = (to.next + 1) % to.capacity;
}

std::vector<TraceEvent> Trace::take() {
  is_on.store(false, std::memory_order_relaxed);
  std::vector<TraceEvent> events;
  {
    const std::lock_guard lock(ring().mutex);
    events = std::exchange(ring().events, {});
  }
  std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.begin_ns, -a.end_ns) < std::tuple(b.begin_ns, -b.end_ns);
  });
  return events;
}

}  // namespace duet
