// The monotonic clock: CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <chrono>
#include <cstdint>

namespace duet {

using Clock = std::chrono::steady_clock;

inline std::int64_t to_ns(Clock::time_point time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); }

inline std::int64_t monotonic_ns() { return to_ns(Clock::now()); }

inline double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

inline double microseconds_since(Clock::time_point begin) { return microseconds(Clock::now() - begin); }

}  // namespace duet
