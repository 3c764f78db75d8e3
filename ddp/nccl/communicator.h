// One rank's NCCL communicator, its stream, and the watchdog thread.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/nccl/rendezvous.h"
#include "ddp/transport/modules.h"
#include "lib/backend/step_graph.h"
#include "lib/base/function_ref.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp::nccl {

/// Calls enqueued on the communicator together. Its events are kept for the next one.
struct Operation {
  ~Operation();
  std::string name;  // "all_reduce #3", for errors
  std::uint64_t number = 0;
  bool collective = false;  // else messages, which not all ranks take part in
  bool timed = true;        // from begin to end; a replay is more than its collectives
  int recording = 0;        // in which it is only written down, or 0
  Clock::time_point started{}, deadline{};
  cudaEvent_t begin = nullptr, end = nullptr;
  bool enqueued = false;  // the events are recorded
  bool done = false;
};

/// Every failure (of NCCL, of CUDA, of another rank, a timeout) aborts the communicator, so that the GPU does not hang,
/// and is reported to the other ranks. After that all calls throw CommError with the first reason. Used by one thread;
/// wait() and wait_on_host() by any.
///
/// While the device records a step (lib/backend/step_graph.h), operations become part of its graph: the events that
/// order the two streams fork the capture to NCCL's and join it again. What NCCL requires for that is left to the user:
/// all ranks must record and replay the same steps; replays and plain operations may mix (its usage/cudagraph,
/// "Mixing", graphUsageMode 2, the default). A replay counts as all of its collectives to the watchdog. NCCL neither
/// ends nor aborts a communicator as long as graphs hold its operations (its init.cc, commDestroySync), so close()
/// drops them, and an abort goes on in a thread of its own, or in the watchdog's, until then: it stops what runs on the
/// device first of all. See also Note [Abort].
class Communicator {
 public:
  using Calls = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  /// Returns when all ranks are connected.
  Communicator(std::shared_ptr<Store> store, int rank, int size, const ConnectOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rendezvous_.rank(); }
  Device device() const { return options_.device; }

  /// Starts `calls` after all work enqueued on the device so far. The host waits only until they are enqueued, which
  /// for the first of a kind includes connecting with the other ranks, and for room in the launch queue.
  std::shared_ptr<Operation> run(const std::string& what, bool collective, const Calls& calls);
  /// Work enqueued on the device from now on runs after the operation.
  void wait(const Operation& operation);
  /// Blocks the host until the operation has ended, so that later work runs after it; false if not by `limit`.
  bool wait_on_host(const Operation& operation, Clock::time_point limit);
  /// Throws CommError once the group has failed or is closed.
  void require_alive() const { failure_.check(); }
  /// For the comparison of all ranks' calls, which NCCL does not make: see Note [Headers].
  void note_header(const Call& call);
  /// Whether calls enqueued now become part of a graph.
  bool records() const;

  /// Drains what was started, then closes together with the others; at once where `drop`. No run() after it.
  void close(bool drop) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// Releases the lock for calls that may block: the watchdog needs it to end them by an abort.
  class Unlocked {
   public:
    Unlocked(Communicator& owner, Lock& lock, bool in_nccl = false) : owner_(owner), lock_(lock) {
      owner.in_nccl_ = in_nccl;
      lock.unlock();
    }
    ~Unlocked() {
      lock_.lock();
      owner_.in_nccl_ = false;
      if (!owner_.failure_.empty()) owner_.changed_.notify_all();
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    Communicator& owner_;
    Lock& lock_;
  };
  class Recorded;
  Recorded& recorded_now();
  std::shared_ptr<Operation> record(const std::string& what, const Calls& calls);
  void replay(const Recorded& recorded, FunctionRef<void()> launch);
  void drop_recordings(Lock& lock) noexcept;
  std::shared_ptr<Operation> take_operation(const std::string& what, bool collective, Milliseconds timeout);
  void connect();
  void check_connecting(Lock& lock, const Operation& connecting);
  void enqueue(Lock& lock, const Calls& calls, cudaEvent_t end);
  void retire(Lock& lock);
  void watch();
  void check_progress(Lock& lock);
  void compare_headers(Lock& lock);
  void check_peers(Lock& lock, const Operation& oldest);
  void await_loss(Lock& lock);
  std::string abort(Lock& lock, const std::string& operation, const std::exception& error);
  void start_abort();
  void abort_now(Lock& lock);
  void drain(Lock& lock);
  void release();

  ConnectOptions options_;
  int gpu_;
  cudaStream_t compute_ = nullptr, stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  StepRecorder& recorder_;
  std::shared_ptr<Recorded> recorded_;  // the newest
  std::vector<int> recordings_;         // that hold operations, or did
  Rendezvous rendezvous_;

  std::mutex mutex_;  // guards everything below
  ncclComm_t communicator_ = nullptr;
  ncclComm_t to_abort_ = nullptr;
  bool in_nccl_ = false;  // run() is in a call on the communicator
  GroupFailure failure_;
  std::uint64_t collectives_ = 0;
  std::deque<std::shared_ptr<Operation>> pending_;
  std::vector<std::shared_ptr<Operation>> operations_;  // all, for reuse
  bool closing_ = false, stopping_ = false;             // the communicator, and then its watchdog
  std::condition_variable changed_;
  CallLog headers_;
  Clock::time_point next_comparison_{};
  std::uint64_t published_ = 0;  // number of collectives; used by the watchdog
  std::thread watchdog_, aborting_;
};

}  // namespace duet::ddp::nccl
