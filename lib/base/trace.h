// Traces of time: what ran when, on which device, in this process, for the picture of a step and for trace viewers;
// and sums over the steps of a wrapper.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/device.h"
#include "lib/monotonic.h"

namespace duet {

/// One stretch of time.
struct TraceEvent {
  enum class Kind : std::uint8_t { work, communication, step };
  const char* name = "";  // a literal: "forward", "all_reduce"
  Kind kind = Kind::work;
  Device device{};                        // for a communication the CPU device with the rank's number
  std::int64_t amount = 0;                // bytes of a communication, the number of a step
  std::int64_t begin_ns = 0, end_ns = 0;  // by the monotonic clock
};

/// Keeps events of all threads until they are taken, the newest `capacity` of them. Off until started; adding an event
/// then costs a reading of the clock at either end and an uncontended lock. Thread-safe.
class Trace {
 public:
  static void start(std::size_t capacity);
  static bool on();
  static void add(const TraceEvent& event);
  /// Stops, and gives all events in the order of their begin, outer before inner.
  static std::vector<TraceEvent> take();
};

/// Traces the time from its construction to its destruction.
class TraceSpan {
 public:
  TraceSpan(const char* name, Device device, TraceEvent::Kind kind = TraceEvent::Kind::work, std::int64_t amount = 0)
      : event_{.name = name,
               .kind = kind,
               .device = device,
               .amount = amount,
               .begin_ns = Trace::on() ? monotonic_ns() : 0,
               .end_ns = 0} {}
  ~TraceSpan() {
    if (event_.begin_ns == 0) return;
    event_.end_ns = monotonic_ns();
    Trace::add(event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent event_;
};

/// The times of the parts of training steps, as DataParallel and DistributedDataParallel measure them: on the host, in
/// microseconds, summed over steps; parts that a wrapper lacks are 0. Among ranks only the steps that synchronise them
/// count, and replays of a recorded step do not.
struct WrapperTimes {
  std::int64_t steps = 0;  // counted by DistributedDataParallel only
  // DataParallel, inside forward.
  double scatter_us = 0, replicate_us = 0, gather_us = 0;
  double forward_us = 0;  // forward of the module or its replicas
  // Ranks: from the end of forward to the last gradient, the loss included; replicas: their own.
  double backward_us = 0;
  double communication_us = 0;  // from the first bucket sent to the end of the last; replicas: the sum of gradients
  double exposed_us = 0;        // the part of it that backward did not hide
};

}  // namespace duet
