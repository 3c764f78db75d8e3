// Threads: starting them, with an error that says which limit it was; a pool that shares out numbered tasks, always in
// the same way; and waiting for a number in memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/function_ref.h"

namespace duet {

/// `workers` threads of which the caller of run() is number 0.
class ThreadPool {
 public:
  /// Starts workers - 1 threads. `started(worker)` is called once in each of them, first of all (pinning, device
  /// choice). What it throws, each run() throws.
  explicit ThreadPool(int workers, std::function<void(int)> started = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return workers_; }

  /// Calls task(i, worker) for i in [0, tasks); worker w takes the w-th run of consecutive tasks. Returns when all are
  /// done. If tasks threw, the exception of the lowest task is rethrown after all workers have stopped. One run() at a
  /// time: throws UsageError that names both threads for a second, also for one from a task of the same pool.
  void run(int tasks, FunctionRef<void(int task, int worker)> task);

 private:
  struct Job {
    int tasks = 0;
    const FunctionRef<void(int, int)>* task = nullptr;
  };
  void serve(int worker);
  void stop();
  void work(int worker);

  int workers_;
  std::atomic<std::thread::id> runner_{};  // the thread in run()
  Job job_;
  std::vector<std::exception_ptr> failures_;   // by worker; a worker stops at its first
  std::vector<std::exception_ptr> unstarted_;  // by worker: what `started` threw there
  std::atomic<std::uint32_t> round_{0};        // a new value starts a round; wraps around
  std::atomic<std::uint32_t> busy_{0};         // workers that have not finished the round
  std::atomic<int> parked_workers_{0};         // threads that wait in the kernel for a round
  std::atomic<int> parked_caller_{0};          // whether the caller waits there for the workers
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

/// The processor's hint for a spin loop.
void pause_core();

/// Pins the calling thread to `count` of the process's cores from `first` on, counted from 0 among those that
/// take_cores() left. Returns whether it did.
bool pin_current_thread(int first, int count = 1);

/// Leaves the process `count` of its cores, from the first-th on: for processes that share a machine. Moves the calling
/// thread there; threads that it starts later follow. Returns false, and changes nothing, if there are not so many.
bool take_cores(int first, int count);

/// Number of cores that this process was given: its affinity mask's, or fewer by quota_cores(). Read once.
int usable_cores();
/// Cores that the CPU quotas of the process's control groups and those around them allow, rounded up; INT_MAX without
/// any. Containers and pods have such quotas. Reads /proc and /sys below `root`.
int quota_cores(const std::string& root = "");
/// Number of them that take_cores() left.
int own_cores();

/// "cannot start WHAT: Resource temporarily unavailable (errno 11): ...". `error` is the errno of fork() or of a
/// thread's start; after EAGAIN which_thread_limit() follows it.
std::string cannot_start(std::string_view what, int error);

/// Throws Error with cannot_start().
[[noreturn]] void throw_no_thread(const std::string& what, const std::system_error& error);

/// Starts a thread that calls `body`. Throws Error.
template <class Body>
std::thread start_thread(const std::string& what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw_no_thread(what, error);
  }
}

/// The limit by which this process can start no more threads and processes, in words; as it is now.
std::string which_thread_limit();

// Waiting for a number in memory, which several processes may map. std::atomic::wait() works within one process only,
// and first yields the core: next to a busy program each yield costs a time slice (libstdc++, bits/atomic_wait.h).

/// Parks the calling thread until futex_wake(value), at most for `limit`; returns at once if the value is no longer
/// `old`. May return spuriously.
void futex_wait(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                std::optional<std::chrono::nanoseconds> limit = {});
/// Wakes the threads, of all processes, that wait for `value`, or `most` of them.
void futex_wake(const std::atomic<std::uint32_t>& value, int most = INT32_MAX);

}  // namespace duet
