// Waiting for a number in memory, which several processes may map. std::atomic::wait() works within one process only,
// and first yields the core: next to a busy program each yield costs a time slice (libstdc++, bits/atomic_wait.h).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>

namespace duet {

/// Parks the calling thread until futex_wake(value), at most for `limit`; returns at once if the value is no longer
/// `old`. May return spuriously.
inline void futex_wait(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                       std::optional<std::chrono::nanoseconds> limit = {}) {
  static_assert(sizeof value == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  timespec time{};
  if (limit) time = {limit->count() / 1'000'000'000, limit->count() % 1'000'000'000};
  ::syscall(SYS_futex, &value, FUTEX_WAIT, old, limit ? &time : nullptr, nullptr, 0);
}

/// Wakes the threads, of all processes, that wait for `value`, or `most` of them.
inline void futex_wake(const std::atomic<std::uint32_t>& value, int most = INT32_MAX) {
  ::syscall(SYS_futex, &value, FUTEX_WAKE, most, nullptr, nullptr, 0);
}

}  // namespace duet
