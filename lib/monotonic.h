// The monotonic clock: CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <chrono>
#include <cstdint>

namespace duet {

inline std::int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

inline std::int64_t monotonic_ns() { return to_ns(std::chrono::steady_clock::now()); }

inline double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace duet
