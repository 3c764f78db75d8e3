#include "lib/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>

#include "lib/base/futex.h"
#include "lib/base/start_thread.h"
#include "lib/error.h"

namespace duet {
namespace {

/// The cores that the process was given, read once: pinning narrows the calling thread's mask.
const cpu_set_t& process_cores() {
  static const cpu_set_t cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
    return set;
  }();
  return cores;
}

/// `count` of these cores from the first-th on.
cpu_set_t part_of(const cpu_set_t& cores, int first, int count) {
  cpu_set_t part;
  CPU_ZERO(&part);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &cores)) continue;
    if (seen >= first && seen < first + count) CPU_SET(cpu, &part);
    ++seen;
  }
  return part;
}

/// What take_cores() left of process_cores().
struct TakenCores {
  std::mutex mutex;
  cpu_set_t cores = process_cores();
};
TakenCores& taken_cores() {
  static TakenCores taken;
  return taken;
}

/// Waits until `value` differs from `old`: a short spin, because the next round usually comes within microseconds, then
/// parked in the kernel. On an oversubscribed machine spinning takes the core from the thread that is waited for.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, bool spin, std::atomic<int>& parked) {
  for (int i = 0; spin && i < 4000; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_core();
  }
  parked.fetch_add(1);  // a change of the value after this sees it, and is followed by a wake
  while (value.load() == old) futex_wait(value, old);
  parked.fetch_sub(1);
}

/// After a change of `value`; `parked` counts only threads that wait for this one.
void wake(const std::atomic<std::uint32_t>& value, const std::atomic<int>& parked) {
  if (parked.load() > 0) futex_wake(value);
}

}  // namespace

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

int usable_cores() { return std::max(1, CPU_COUNT(&process_cores())); }

bool pin_current_thread(int first, int count) {
  TakenCores& taken = taken_cores();
  const std::lock_guard lock(taken.mutex);
  if (first < 0 || count < 1 || first + count > CPU_COUNT(&taken.cores)) return false;
  const cpu_set_t part = part_of(taken.cores, first, count);
  return pthread_setaffinity_np(pthread_self(), sizeof part, &part) == 0;
}

int own_cores() {
  TakenCores& taken = taken_cores();
  const std::lock_guard lock(taken.mutex);
  return std::max(1, CPU_COUNT(&taken.cores));
}

bool take_cores(int first, int count) {
  TakenCores& taken = taken_cores();
  const std::lock_guard lock(taken.mutex);
  if (first < 0 || count < 1 || first + count > CPU_COUNT(&process_cores())) return false;
  taken.cores = part_of(process_cores(), first, count);
  return pthread_setaffinity_np(pthread_self(), sizeof taken.cores, &taken.cores) == 0;
}

ThreadPool::ThreadPool(int workers, std::function<void(int)> started)
    : workers_(workers), failures_(static_cast<std::size_t>(std::max(1, workers))) {
  require<UsageError>(workers >= 1 && workers <= 4096, "a thread pool of ", workers, " threads, expected 1 to 4096");
  threads_.reserve(static_cast<std::size_t>(workers - 1));
  try {
    for (int w = 1; w < workers; ++w) {
      threads_.push_back(start_thread(concat("worker thread ", w, " of a pool of ", workers), [this, w, started] {
        if (started) started(w);
        serve(w);
      }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_release);
  round_.fetch_add(1);
  wake(round_, parked_workers_);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int tasks, FunctionRef<void(int, int)> task) {
  std::thread::id runner;
  require<UsageError>(runner_.compare_exchange_strong(runner, std::this_thread::get_id(), std::memory_order_acquire),
                      "thread ", std::this_thread::get_id(), " called run() while thread ", runner,
                      " ran tasks of the same thread pool");
  const struct Release {
    ~Release() { pool.runner_.store({}, std::memory_order_release); }
    ThreadPool& pool;
  } release{*this};
  job_ = {tasks, &task};
  busy_.store(static_cast<std::uint32_t>(workers_ - 1), std::memory_order_relaxed);
  if (workers_ > 1) {
    round_.fetch_add(1);
    wake(round_, parked_workers_);
  }
  work(0);
  const bool spin = workers_ <= own_cores();
  for (std::uint32_t left = busy_.load(); left != 0; left = busy_.load())
    wait_for_change(busy_, left, spin, parked_caller_);
  for (std::exception_ptr& failure : failures_) {
    if (!failure) continue;
    std::exception_ptr first = std::exchange(failure, nullptr);
    for (std::exception_ptr& later : failures_) later = nullptr;
    std::rethrow_exception(first);
  }
}

void ThreadPool::work(int worker) {
  const int begin = job_.tasks * worker / workers_, end = job_.tasks * (worker + 1) / workers_;
  try {
    for (int i = begin; i < end; ++i) (*job_.task)(i, worker);
  } catch (...) {
    failures_[static_cast<std::size_t>(worker)] = std::current_exception();
  }
}

void ThreadPool::serve(int worker) {
  const bool spin = workers_ <= own_cores();
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(round_, seen, spin, parked_workers_);
    ++seen;  // one round at a time: the caller waits for all workers before it starts the next
    if (stopping_.load(std::memory_order_acquire)) return;
    work(worker);
    if (busy_.fetch_sub(1) == 1) wake(busy_, parked_caller_);
  }
}

}  // namespace duet
