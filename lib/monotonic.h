// The monotonic clock in nanoseconds: CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <chrono>
#include <cstdint>

namespace duet {

inline std::int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

inline std::int64_t monotonic_ns() { return to_ns(std::chrono::steady_clock::now()); }

}  // namespace duet
