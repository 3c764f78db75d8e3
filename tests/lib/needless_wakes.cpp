// A pool whose last worker ends while another is parked and the caller is not: no wake is needed.
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <thread>

#include "lib/base/threads.h"

namespace {

thread_local int self = 0;  // the worker that this thread is
std::atomic<int> waits[3], wakes{0};
std::atomic<int> limits[3];  // how often a worker had waited when it ended its task of the round

/// Ends the task of a worker.
void end_task() { limits[self] = waits[self].load(); }

/// Returns when a worker that ended its task has parked since.
void await_parked(int worker) {
  while (limits[worker] < 0 || waits[worker] <= limits[worker]) std::this_thread::yield();
}

}  // namespace

/// The pool calls this one in place of libc's.
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  // Not static: the guard of its initialisation would call this function.
  const auto real = reinterpret_cast<decltype(&syscall)>(::dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long arguments[6] = {};
  // A wait has four arguments and a wake three: libstdc++ gives no more, and what follows is not its caller's to read.
  for (int i = 0, given = 6; i < given; ++i) {
    arguments[i] = va_arg(list, long);
    if (number == SYS_futex && i == 1) given = arguments[1] == FUTEX_WAIT ? 4 : 3;
  }
  va_end(list);
  if (number == SYS_futex && arguments[1] == FUTEX_WAIT) ++waits[self];
  if (number == SYS_futex && arguments[1] == FUTEX_WAKE) ++wakes;
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

int main() {
  duet::ThreadPool pool(3, [](int worker) { self = worker; });
  int needless = 0, first_wakes = 0;
  for (int round = 0; round <= 100; ++round) {
    // Round 0 does not count: in it threads initialise static variables, whose guards wake each other.
    if (round == 1) needless = 0, first_wakes = wakes;
    limits[1] = limits[2] = -1;
    pool.run(3, [&](int, int worker) {
      const int before = wakes;
      if (worker == 2) await_parked(1);
      if (worker != 0) return end_task();
      await_parked(2);
      needless += wakes - before;
    });
  }
  const int useful = wakes - first_wakes - needless;
  std::printf("%d rounds woke parked workers %d times, and none %d times\n", 100, useful, needless);
  return needless == 0 && useful > 0 ? 0 : 1;
}
