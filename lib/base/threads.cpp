#include "lib/base/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/text.h"
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

/// The cores of process_cores() that take_cores() has left.
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

int quota_cores(const std::string& root) {
  double least = INT_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/GROUP" of version 2, "4:cpu,cpuacct:/GROUP" of 1
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && concat(',', controllers, ',').find(",cpu,") == std::string::npos) continue;
    // In a container, the group may be mounted as the root.
    for (std::filesystem::path group = line.substr(second + 1);; group = group.parent_path()) {
      for (const std::string& mount : {controllers, std::string(controllers.empty() ? "unified" : "cpu")}) {
        const std::string folder = concat(root, "/sys/fs/cgroup/", mount, "/", group.relative_path().string(), "/");
        double quota = 0, period = 0;  // 0 if there is no such file, or it says "max"
        std::ifstream(folder + "cpu.max") >> quota >> period;
        if (!controllers.empty()) {
          std::ifstream(folder + "cpu.cfs_quota_us") >> quota;
          std::ifstream(folder + "cpu.cfs_period_us") >> period;
        }
        if (quota > 0 && period > 0) least = std::min(least, std::max(1.0, std::ceil(quota / period)));
      }
      if (!group.has_relative_path()) break;
    }
  }
  return static_cast<int>(least);
}

int usable_cores() {
  static const int cores = std::max(1, std::min(CPU_COUNT(&process_cores()), quota_cores()));
  return cores;
}

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
  return std::max(1, std::min(CPU_COUNT(&taken.cores), usable_cores()));
}

bool take_cores(int first, int count) {
  TakenCores& taken = taken_cores();
  const std::lock_guard lock(taken.mutex);
  if (first < 0 || count < 1 || first + count > CPU_COUNT(&process_cores())) return false;
  taken.cores = part_of(process_cores(), first, count);
  return pthread_setaffinity_np(pthread_self(), sizeof taken.cores, &taken.cores) == 0;
}

ThreadPool::ThreadPool(int workers, std::function<void(int)> started)
    : workers_(workers), failures_(static_cast<std::size_t>(std::max(1, workers))), unstarted_(failures_.size()) {
  require<UsageError>(workers >= 1 && workers <= 4096, "a thread pool of ", workers, " threads, expected 1 to 4096");
  threads_.reserve(static_cast<std::size_t>(workers - 1));
  try {
    for (int w = 1; w < workers; ++w) {
      threads_.push_back(start_thread(concat("worker thread ", w, " of a pool of ", workers), [this, w, started] {
        try {
          if (started) started(w);
        } catch (...) {  // each run() throws it
          unstarted_[static_cast<std::size_t>(w)] = std::current_exception();
        }
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
    if (const auto& failure = unstarted_[static_cast<std::size_t>(worker)]) std::rethrow_exception(failure);
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

namespace {

/// The control group of this process, or one above it, that is full; empty if none is.
std::string full_control_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b", or "8:pids:/a/b"
    const std::size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    const std::string controller = line.substr(name, path - name - 1);
    if (!controller.empty() && controller != "pids") continue;
    const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (std::string group = line.substr(path);; group.erase(group.rfind('/'))) {
      const std::string most = first_line(root + group + "/pids.max"), now = first_line(root + group + "/pids.current");
      if (!most.empty() && most != "max" && !now.empty() && std::stoll(now) >= std::stoll(most))
        return concat("the control group ", group.empty() ? "/" : group, " has reached its pids.max of ", most);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return {};
}

/// Adds up, in bytes, the most address space that was used and what the stack of another thread takes. What is used now
/// can be less than when the thread was refused, as other threads have ended since.
std::size_t address_space_for_one_more() {
  std::size_t most = 0, stack = 0, guard = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; most == 0 && status >> word;) {
    if (word == "VmPeak:") status >> most;  // KiB
  }
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack);
    ::pthread_attr_getguardsize(&attributes, &guard);
    ::pthread_attr_destroy(&attributes);
  }
  return most * 1024 + stack + guard;
}

/// Whether the kernel does not apply RLIMIT_NPROC: to root, but not to root of a user namespace.
bool is_machine_root() {
  std::istringstream users(first_line("/proc/self/uid_map"));
  uid_t inside = 1, outside = 1;
  return ::getuid() == 0 && users >> inside >> outside && inside == 0 && outside == 0;
}

}  // namespace

std::string which_thread_limit() {
  if (const std::string group = full_control_group(); !group.empty()) return group;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      address_space_for_one_more() > limit.rlim_cur)
    return concat("the address space is limited to ", limit.rlim_cur / 1024, " KiB (ulimit -v)");
  if (!is_machine_root() && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    return concat("this user may have ", limit.rlim_cur, " processes and threads (ulimit -u)");
  return concat("memory is short, or the machine's ", first_line("/proc/sys/kernel/threads-max"),
                " threads (kernel.threads-max) or ", first_line("/proc/sys/kernel/pid_max"),
                " process numbers (kernel.pid_max) are used up");
}

std::string cannot_start(std::string_view what, int error) {
  const std::string limit = error == EAGAIN ? ": " + which_thread_limit() : "";
  return concat("cannot start ", what, ": ", errno_text(error), limit);
}

void throw_no_thread(const std::string& what, const std::system_error& error) {
  throw Error(cannot_start(what, error.code().value()));
}

void futex_wait(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                std::optional<std::chrono::nanoseconds> limit) {
  static_assert(sizeof value == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  timespec time{};
  if (limit) time = {limit->count() / 1'000'000'000, limit->count() % 1'000'000'000};
  ::syscall(SYS_futex, &value, FUTEX_WAIT, old, limit ? &time : nullptr, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& value, int most) {
  ::syscall(SYS_futex, &value, FUTEX_WAKE, most, nullptr, nullptr, 0);
}

}  // namespace duet
