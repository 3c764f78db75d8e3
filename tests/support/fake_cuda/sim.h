// Inside the simulator: operations, the scheduler that runs them, memory, and the state that all files share.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/random.h"

namespace duet_sim {

long setting(const char* name, long otherwise);  // an environment variable

constexpr int kMaxDevices = 8;
constexpr int kHost = -1;  // as an allocation's device: pinned host memory

/// One piece of queued work. It may run when all work that it waits for is done.
struct Op {
  explicit Op(std::string name, int on = 0) : what(std::move(name)), device(on) {}

  std::string what;
  const void* kernel = nullptr;  // named only when something goes wrong
  int device;
  std::uint32_t reach = 0;                // bit d: may touch memory of device d
  std::vector<PointerArgument> pointers;  // checked when it is enqueued, and again when it runs
  std::function<void()> body;

  int waiting = 0;
  bool done = false;
  std::vector<std::shared_ptr<Op>> before, next;
};
using OpPtr = std::shared_ptr<Op>;
using Ops = std::vector<OpPtr>;
using Lock = std::unique_lock<std::mutex>;
/// Makes the operation of a call, behind `before`: once for a stream, at every launch for a graph.
using Maker = std::function<OpPtr(const Ops& before)>;

struct Node {
  Maker make;
  std::vector<std::size_t> before;
  int priority;
};
struct Capture;

/// What is shared by all threads; everything below needs the mutex unless it says otherwise.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_set<OpPtr> pending;
  Ops runnable;
  bool executing = false;
  std::uint64_t finished = 0;
  duet::Mt19937 random{static_cast<std::uint64_t>(setting("DUET_SIM_SEED", 1))};
  cudaError_t sticky[kMaxDevices] = {};
  std::atomic<std::uint32_t> peers[kMaxDevices] = {};
  std::uint32_t contexts = 0;
  std::set<cudaStream_t> streams;
  std::set<std::shared_ptr<Capture>> captures;
};
State& state();  // never destroyed
int device_count();
/// How long others are waited for until it is a deadlock.
std::chrono::seconds patience();
std::size_t random_number(std::size_t below);

// --- scheduler.cpp ---
/// Puts an operation behind others, and behind `holds` calls of release().
OpPtr schedule(Op op, const Ops& before, int holds = 0);
void add_before(const OpPtr& op, const Ops& before);
void release(const OpPtr& op);
void finish(const OpPtr& op);
/// Runs queued work until `targets` are done.
cudaError_t drain(Lock& lock, const Ops& targets);
/// Runs at most one operation.
void run_one(Lock& lock);
/// Prints and keeps "simulator: ..."; needs no mutex, allocates nothing.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// The operation that this thread works for; null in host code.
const Op*& current_op();
/// Makes the operation that this thread works for fail; the device's sticky error.
void fail_current_op(cudaError_t error);
/// Calls; false when a bad address was touched (reported, sticky).
bool guarded(const std::function<void()>& call);
const char* name_of(const Op& op);

// --- memory.cpp: needs no mutex ---
/// Where `bytes` at p lie, with the device; bad (and a report) when they are not all of one living allocation.
enum class Place { pageable, pinned, device, bad };
Place place_of(const void* p, std::size_t bytes, int* device);
/// Says what is wrong with a pointer for work of a device; empty when nothing. One that is not certain may be no
/// pointer at all.
std::string pointer_fault(const void* p, bool certain, int device, std::uint32_t reach);
/// False and a report when the operation may not use one of its pointers now.
bool pointers_sound(const Op& op);
/// Opens the allocation at an address that an operation touched; false and a report when it may not.
bool open_memory(void* address, const Op& op);
bool in_arena(const void* address);
/// Closes what the operation had opened; false and a report when bytes around an allocation were written.
bool close_memory(const Op& op);

// --- runtime.cpp ---
/// First line of every call: counts it for DUET_SIM_FAIL, refuses it after sticky errors.
cudaError_t enter(const char* function);
/// The error to give instead of the function's n-th call: 0, `otherwise`, or the one that DUET_SIM_FAIL names.
int injected(const char* function, int otherwise);
cudaError_t set_last(cudaError_t error);
int current_device();
/// `stream` or the current device's default one; null when it is no stream.
cudaStream_t resolve(cudaStream_t stream);
/// A full launch queue blocks the host until the device has done something; refuses null, which is no stream.
cudaError_t wait_for_room(Lock& lock, cudaStream_t stream);
/// A call of the runtime: body(lock) under the mutex.
template <class Body>
cudaError_t call(const char* function, Body&& body) {
  if (const cudaError_t error = enter(function)) return error;
  Lock lock(state().mutex);
  return set_last(body(lock));
}
/// One that enqueues work on a stream: body(lock, stream).
template <class Body>
cudaError_t call(const char* function, cudaStream_t given, Body&& body) {
  return call(function, [&](Lock& lock) {
    cudaStream_t stream = resolve(given);
    const cudaError_t error = wait_for_room(lock, stream);
    return error != cudaSuccess ? error : body(lock, stream);
  });
}
/// Asks the stream for an operation, or its capture for a node. After wait_for_room().
cudaError_t submit(cudaStream_t stream, const Maker& make);
cudaError_t submit(cudaStream_t stream, Op op);
/// The sticky error of a device.
cudaError_t sticky_of(int device);

// --- graph.cpp ---
/// Whether a capture forbids this thread a call that allocates or synchronises; it is then invalid, as with CUDA.
bool forbidden_by_capture();
cudaError_t record_node(cudaStream_t stream, const Maker& make);
/// Ends a capture's usefulness; returns `error`.
cudaError_t invalidate(const std::shared_ptr<Capture>& capture, cudaError_t error);
/// cudaStreamWaitEvent where the stream, the event or both are being captured.
cudaError_t join_capture(cudaStream_t stream, cudaEvent_t event);

// --- grid.cpp ---
void run_grid(dim3 grid, dim3 block, const std::function<void()>& call, const Op& op);
/// Launches as launch_kernel does, but `call` runs all threads by itself, in an order that depends on the seed.
cudaError_t launch_grid(const cudaLaunchConfig_t& config, const void* kernel,
                        std::function<void(std::uint64_t seed)> call, std::vector<PointerArgument> pointers);

}  // namespace duet_sim

struct CUstream_st {
  void add(const duet_sim::OpPtr& op) { queue.push_back(tail = op); }

  int device, priority;
  duet_sim::OpPtr tail;
  std::deque<duet_sim::OpPtr> queue;  // up to the tail
  std::shared_ptr<duet_sim::Capture> capture;
  std::vector<std::size_t> last;  // nodes of the capture before the next one
};
struct CUevent_st {
  int device;
  bool timed;
  duet_sim::OpPtr record;
  std::shared_ptr<double> time_ms;
  std::shared_ptr<duet_sim::Capture> capture;
  std::vector<std::size_t> nodes;
};
