#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

thread_local sigjmp_buf* escape = nullptr;
std::atomic<cudaError_t> failure = cudaSuccess;  // error of the operation that runs, from whichever of its threads
struct sigaction previous[2];                    // earlier handlers of SIGSEGV and SIGILL
std::mutex report_mutex;
char kept[4096];

/// Opens memory that an operation touches for the first time, ends a kernel's thread that touches what it may not, or
/// at an address that is not aligned: kernels are compiled to trap there.
void on_fault(int signal, siginfo_t* info, void* context) {
  void* address = info->si_addr;
  const bool misaligned = signal == SIGILL && current_op() != nullptr;
  if (misaligned) {
    report("%s reads or writes at an address that is not aligned", name_of(*current_op()));
    fail_current_op(cudaErrorMisalignedAddress);
  }
  if (misaligned || in_arena(address)) {
    if (current_op() != nullptr) {
      if (!misaligned && open_memory(address, *current_op())) return;
      if (escape != nullptr) {  // the mask comes back here, not at every sigsetjmp
        pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
        siglongjmp(*escape, 1);
      }
    }
    report("host code touches device memory at %p", address);
  }
  sigaction(signal, &previous[signal == SIGILL], nullptr);  // tried again, it ends as without the simulator
}

/// Test frameworks take the signals for themselves, so they are looked at before every operation.
void take_signals() {
  for (const int signal : {SIGSEGV, SIGILL}) {
    struct sigaction now;
    sigaction(signal, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) continue;
    previous[signal == SIGILL] = now;
    struct sigaction own = {};
    own.sa_sigaction = on_fault;
    own.sa_flags = SA_SIGINFO;
    sigaction(signal, &own, nullptr);
  }
}

/// Runs the operation's body, unless the device failed before.
void execute(const OpPtr& op, const std::function<void()>& body, cudaError_t& sticky) {
  if (sticky != cudaSuccess || !body) return;
  take_signals();
  current_op() = op.get();
  failure = cudaSuccess;
  const bool good = pointers_sound(*op) && guarded(body);
  if (!close_memory(*op) || !good) sticky = cudaErrorIllegalAddress;
  if (failure != cudaSuccess) sticky = failure;
  current_op() = nullptr;
}

/// What `targets` wait for, themselves included.
std::unordered_set<Op*> needed_by(const Ops& targets) {
  std::unordered_set<Op*> needed;
  std::vector<Op*> open;
  for (const OpPtr& op : targets)
    if (op != nullptr) open.push_back(op.get());  // null: of a stream without work
  while (!open.empty()) {
    Op* op = open.back();
    open.pop_back();
    if (op->done || !needed.insert(op).second) continue;
    for (const OpPtr& before : op->before) open.push_back(before.get());
  }
  return needed;
}

enum class Order { any, needed_first, needed_last };

void run(Lock& lock, std::size_t chosen) {
  State& s = state();
  OpPtr op = s.runnable[chosen];
  s.runnable.erase(s.runnable.begin() + static_cast<std::ptrdiff_t>(chosen));
  s.executing = true;
  cudaError_t sticky = s.sticky[op->device];
  const auto body = op->body;  // an abort meanwhile takes it from the operation
  lock.unlock();
  execute(op, body, sticky);
  lock.lock();
  if (s.sticky[op->device] == cudaSuccess) s.sticky[op->device] = sticky;
  s.executing = false;
  finish(op);
}

bool run_some(Lock& lock, Order order, const std::unordered_set<Op*>& needed) {
  State& s = state();
  if (s.executing || s.runnable.empty()) return false;
  std::vector<std::size_t> preferred;
  for (std::size_t i = 0; i < s.runnable.size() && order != Order::any; ++i)
    if (needed.count(s.runnable[i].get()) == (order == Order::needed_first)) preferred.push_back(i);
  run(lock, preferred.empty() ? random_number(s.runnable.size()) : preferred[random_number(preferred.size())]);
  return true;
}

}  // namespace

State& state() {
  static State* shared = new State;
  return *shared;
}

std::size_t random_number(std::size_t below) { return state().random.random() % below; }

const Op*& current_op() {
  thread_local const Op* op = nullptr;
  return op;
}

void fail_current_op(cudaError_t error) {
  cudaError_t none = cudaSuccess;
  failure.compare_exchange_strong(none, error);  // the first counts
}

bool guarded(const std::function<void()>& call) {
  sigjmp_buf place;
  sigjmp_buf* volatile outer = escape;
  if (sigsetjmp(place, 0) != 0) {
    escape = outer;
    return false;
  }
  escape = &place;
  call();
  escape = outer;
  return true;
}

void report(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "simulator: %s\n", line);
  std::lock_guard lock(report_mutex);
  std::strncat(kept, line, sizeof kept - std::strlen(kept) - 2);
  std::strcat(kept, "\n");
}

std::string take_report() {
  std::lock_guard lock(report_mutex);
  std::string text = kept;
  kept[0] = 0;
  return text;
}

const char* name_of(const Op& op) {
  Dl_info info{};
  if (op.kernel != nullptr && ::dladdr(op.kernel, &info) != 0 && info.dli_sname != nullptr) return info.dli_sname;
  return op.what.c_str();
}

void add_before(const OpPtr& op, const Ops& before) {
  for (const OpPtr& other : before) {
    if (other == nullptr || other->done) continue;
    other->next.push_back(op);
    op->before.push_back(other);
    ++op->waiting;
  }
}

void release(const OpPtr& op) {
  if (--op->waiting == 0 && !op->done) state().runnable.push_back(op);
  state().changed.notify_all();
}

OpPtr schedule(Op made, const Ops& before, int holds) {
  auto op = std::make_shared<Op>(std::move(made));
  op->waiting = holds + 1;
  state().pending.insert(op);
  add_before(op, before);
  release(op);
  return op;
}

void finish(const OpPtr& op) {
  State& s = state();
  op->done = true;
  op->body = nullptr;
  op->before.clear();
  for (const OpPtr& other : op->next) release(other);
  op->next.clear();
  s.pending.erase(op);
  ++s.finished;
  s.changed.notify_all();
}

void run_one(Lock& lock) { run_some(lock, Order::any, {}); }

cudaError_t drain(Lock& lock, const Ops& targets) {
  State& s = state();
  const auto order = static_cast<Order>(random_number(3));
  const auto needed = needed_by(targets);
  const auto done = [](const OpPtr& op) { return op == nullptr || op->done; };
  while (!std::all_of(targets.begin(), targets.end(), done)) {
    if (run_some(lock, order, needed)) continue;
    const std::uint64_t seen = s.finished;
    const auto can_go_on = [&] { return s.finished != seen || (!s.executing && !s.runnable.empty()); };
    const bool moved = s.changed.wait_for(lock, patience(), can_go_on);
    if (moved || s.executing) continue;
    for (Op* op : needed_by(targets))
      if (op->waiting > 0) report("deadlock: %s waits for work that is never enqueued", name_of(*op));
    return cudaErrorLaunchTimeout;
  }
  return cudaSuccess;
}

void reset(std::uint64_t seed, const std::string& fail) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return !s.executing; });
  for (const OpPtr& op : std::vector<OpPtr>(s.pending.begin(), s.pending.end())) finish(op);
  s.runnable.clear();
  s.captures.clear();
  for (cudaStream_t stream : s.streams) stream->capture = nullptr;
  for (cudaError_t& sticky : s.sticky) sticky = cudaSuccess;
  s.random.seed(seed);
  set_failures(fail);
  lock.unlock();
  set_last(cudaSuccess);
  take_report();
}

}  // namespace duet_sim
