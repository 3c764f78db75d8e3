// Waiting for a number in memory that several processes map. std::atomic::wait() works within one process only.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace duet::ddp {

/// Parks the calling thread until somebody wakes those who wait for `value`, at most for `limit`; returns at once if
/// the value is no longer `old`. May return for no reason.
inline void futex_wait(const std::atomic<std::uint32_t>& value, std::uint32_t old, std::chrono::nanoseconds limit) {
  static_assert(sizeof value == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  const timespec time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, &value, FUTEX_WAIT, old, &time, nullptr, 0);
}

/// Wakes all threads, of all processes, that wait for `value`.
inline void futex_wake(const std::atomic<std::uint32_t>& value) {
  ::syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace duet::ddp
