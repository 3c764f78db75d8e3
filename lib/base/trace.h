// The trace of this process: what ran when, on which device. The times of a step's parts, pictures of steps and files
// for trace viewers are all made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/device.h"
#include "lib/monotonic.h"

namespace duet {

/// One stretch of time.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    work,
    communication,
    step,
    device_communication,  // timed by the device: its length is right, its begin is not
  };
  const char* name = "";  // a literal: "forward", "all_reduce"
  Kind kind = Kind::work;
  Device device{};                        // for a communication the CPU device with the rank's number
  std::int64_t amount = 0;                // bytes of a communication, the number of a step, the rank whose buckets end
  std::int64_t begin_ns = 0, end_ns = 0;  // by the monotonic clock

  bool is_communication() const { return kind == Kind::communication || kind == Kind::device_communication; }
  double us() const { return static_cast<double>(end_ns - begin_ns) / 1e3; }
};

/// A ring of the newest events of all threads: parts of DataParallel's forward and backward, waiting for the last
/// bucket, collectives, and what a training loop adds. An event costs a reading of the clock at either end and an
/// uncontended lock. Thread-safe.
class Trace {
 public:
  /// Keeps the newest `capacity` events from here on, 4,096 unless called. Forgets those before.
  static void keep(std::size_t capacity);
  static void add(const TraceEvent& event);
  /// How many events were added so far: a position for read().
  static std::uint64_t position();
  /// Replaces `events` by those added from position `from` on that are still kept, in the order of their begin, outer
  /// before inner. Returns the position behind them.
  static std::uint64_t read(std::uint64_t from, std::vector<TraceEvent>& events);
};

/// Traces the time from its construction to its destruction; nothing where `name` is null.
class TraceSpan {
 public:
  TraceSpan(const char* name, Device device, TraceEvent::Kind kind = TraceEvent::Kind::work, std::int64_t amount = 0)
      : event_{.name = name, .kind = kind, .device = device, .amount = amount, .begin_ns = monotonic_ns()} {}
  ~TraceSpan() {
    if (event_.name == nullptr) return;
    event_.end_ns = monotonic_ns();
    Trace::add(event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent event_;
};

}  // namespace duet
