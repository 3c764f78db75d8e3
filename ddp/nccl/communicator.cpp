#include "ddp/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "ddp/nccl/check.h"
#include "lib/backend/backend.h"
#include "lib/base/fault_point.h"
#include "lib/base/threads.h"
#include "lib/base/trace.h"

namespace duet::ddp::nccl {
namespace {

constexpr std::chrono::microseconds kPollEvery{50};
constexpr int kSpins = 100;
constexpr Milliseconds kCheckPeersEvery{100};
constexpr Milliseconds kWatchEvery{5};
constexpr Milliseconds kSlow{100};  // an operation for which the others' progress is read
constexpr Milliseconds kCompareEvery{50};
constexpr Milliseconds kCompareElasticEvery{10'000};  // of an elastic job, whose store keeps all that was ever set
constexpr Milliseconds kLeaveNccl{1000};              // for a caller, before its communicator is aborted all the same

cudaEvent_t make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return event;
}

/// Yields at first, then sleeps.
void pause(int round) {
  if (round < kSpins)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(kPollEvery);
}

/// Makes a call in a thread of its own, which the destructor leaves running if it has not returned: NCCL cannot abort
/// its calls that connect and end a communicator (its usage/communicators, "Fault Tolerance"). What the call uses must
/// live as long as the call. Used by one thread.
class BlockingCall {
 public:
  /// Throws Error where the thread, named `what`, cannot be started.
  template <class Call>
  BlockingCall(const std::string& what, Call call) {
    std::packaged_task<void()> task(std::move(call));
    returned_ = task.get_future();
    thread_ = start_thread(what, std::move(task));
  }
  ~BlockingCall() {
    if (thread_.joinable()) thread_.detach();
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

  /// False if the call has not returned by `limit`; else rethrows what it threw. Not again after that.
  bool wait_until(Clock::time_point limit) {
    if (returned_.wait_until(limit) != std::future_status::ready) return false;
    thread_.join();
    returned_.get();
    return true;
  }

 private:
  std::future<void> returned_;
  std::thread thread_;
};

/// NCCL's own abort may wait for another process that does not come any more; its kernels end all the same.
void abort_within(Milliseconds limit, ncclComm_t communicator) {
  try {
    int gpu = 0;
    check(cudaGetDevice(&gpu), "cudaGetDevice");
    BlockingCall call("the thread that aborts a communicator of NCCL", [gpu, communicator] {
      activate(gpu);
      ncclCommAbort(communicator);
    });
    call.wait_until(Clock::now() + limit);
  } catch (const Error&) {  // no thread could be started
    ncclCommAbort(communicator);
  }
}

/// What a thread that connects makes; its owner may not wait for it any longer.
class Connecting {
 public:
  /// Aborts the communicator if take() was called before.
  void give(ncclComm_t made) {
    {
      const std::lock_guard lock(mutex_);
      if (!taken_) {
        made_ = made;
        return;
      }
    }
    if (made != nullptr) ncclCommAbort(made);
  }
  /// The communicator, also of a failed initialisation; null if there is none yet, or NCCL made none.
  ncclComm_t take() {
    const std::lock_guard lock(mutex_);
    taken_ = true;
    return std::exchange(made_, nullptr);
  }

 private:
  std::mutex mutex_;
  ncclComm_t made_ = nullptr;
  bool taken_ = false;
};

}  // namespace

/// Notifies the communicator of a recording's replays.
class Communicator::Recorded final : public RecordedWork {
 public:
  Recorded(Communicator& owner, int number) : communicator(owner), recording(number) {}
  void replay(FunctionRef<void()> launch) override { communicator.replay(*this, launch); }

  Communicator& communicator;
  const int recording;
  std::uint64_t collectives = 0;
};

Operation::~Operation() {
  for (const cudaEvent_t event : {begin, end})
    if (event != nullptr) cudaEventDestroy(event);
}

Communicator::Communicator(std::shared_ptr<Store> store, int rank, int size, const ConnectOptions& options)
    : options_(options),
      gpu_(options.device.index),
      recorder_(*backend(options.device.kind).recorder(options.device)),
      rendezvous_(std::move(store), rank, size) {
  compute_ = static_cast<cudaStream_t>(backend(options.device.kind).stream(options.device));
  activate(gpu_);
  rendezvous_.compare_gpus(gpu_, options.connect_timeout);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  ready_ = make_event(cudaEventDisableTiming);
  try {
    connect();
  } catch (...) {
    release();
    throw;
  }
}

void Communicator::connect() {
  const ncclUniqueId id = rendezvous_.share_id(options_.connect_timeout);
  const auto made = std::make_shared<Connecting>();
  Lock lock(mutex_);
  const auto connecting = take_operation("connecting", true, options_.connect_timeout);
  watchdog_ = start_thread(concat("the thread that watches NCCL for rank ", rank()), [this] { watch(); });
  try {
    BlockingCall call(concat("the thread that connects NCCL for rank ", rank()),
                      [made, id, gpu = gpu_, rank = rank(), size = rendezvous_.size()] {
                        activate(gpu);
                        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                        config.blocking = 1;  // otherwise NCCL starts a thread for every collective
                        ncclComm_t communicator = nullptr;
                        const ncclResult_t result = ncclCommInitRankConfig(&communicator, size, id, rank, &config);
                        made->give(communicator);
                        check(result);
                      });
    while (!call.wait_until(Clock::now() + kCheckPeersEvery)) check_connecting(lock, *connecting);
    communicator_ = made->take();
  } catch (const Error& error) {
    communicator_ = made->take();
    const CommError failure(abort(lock, connecting->name, error));
    lock.unlock();
    close(true);
    throw failure;
  }
}

void Communicator::check_connecting(Lock& lock, const Operation& connecting) {
  try {
    if (options_.check) options_.check();
    check_peers(lock, connecting);
  } catch (const CommError& error) {
    throw CommError(concat(error.what(), "; NCCL cannot abort this, so the thread that connects is left running"));
  }
}

Communicator::~Communicator() {
  close(true);
  release();
}

void Communicator::release() {
  operations_.clear();
  if (const cudaEvent_t event = std::exchange(ready_, nullptr); event != nullptr) cudaEventDestroy(event);
  if (const cudaStream_t stream = std::exchange(stream_, nullptr); stream != nullptr) cudaStreamDestroy(stream);
}

std::shared_ptr<Operation> Communicator::take_operation(const std::string& what, bool collective,
                                                        Milliseconds timeout) {
  const auto free = std::find_if(operations_.begin(), operations_.end(),
                                 [](const auto& operation) { return operation.use_count() == 1; });
  std::shared_ptr<Operation> operation;
  if (free != operations_.end()) {
    operation = *free;
  } else {
    operation = operations_.emplace_back(std::make_shared<Operation>());
    operation->begin = make_event(cudaEventDefault);
    operation->end = make_event(cudaEventDefault);
  }
  operation->collective = collective;
  operation->number = collective ? collectives_++ : collectives_;
  operation->name = collective ? concat(what, " #", operation->number) : what;
  operation->started = Clock::now();
  operation->deadline = operation->started + timeout;
  operation->enqueued = operation->done = false;
  operation->timed = true;
  operation->recording = 0;
  return operation;
}

std::shared_ptr<Operation> Communicator::run(const std::string& what, bool collective, const Calls& calls) {
  activate(gpu_);
  if (records()) {
    require<UsageError>(collective, what, ": messages cannot be part of a recorded step");
    return record(what, calls);
  }
  Lock lock(mutex_);
  failure_.check();
  const auto operation = take_operation(what, collective, options_.group.timeout);
  pending_.push_back(operation);
  changed_.notify_all();
  try {
    {
      const Unlocked blocking(*this, lock);
      check(cudaEventRecord(ready_, compute_), "cudaEventRecord");
      check(cudaStreamWaitEvent(stream_, ready_, 0), "cudaStreamWaitEvent");
      check(cudaEventRecord(operation->begin, stream_), "cudaEventRecord");
    }
    enqueue(lock, calls, operation->end);
  } catch (const Error& error) {
    throw CommError(abort(lock, operation->name, error));
  }
  operation->enqueued = true;
  lock.unlock();
  fault_point("collective");
  return operation;
}

/// Passes the calls to NCCL and records `end` behind them. Throws CommError when the communicator was aborted
/// meanwhile.
void Communicator::enqueue(Lock& lock, const Calls& calls, cudaEvent_t end) {
  failure_.check();
  {
    const ncclComm_t communicator = communicator_;
    const Unlocked blocking(*this, lock, true);
    check(calls(communicator, stream_));
    check(cudaEventRecord(end, stream_), "cudaEventRecord");
  }
  failure_.check();
}

void Communicator::wait(const Operation& operation) {
  {
    const Lock lock(mutex_);
    if (operation.done) return;
    failure_.check();
  }
  // An operation of a recording that has ended is in its graph, not on the stream.
  if (operation.recording != 0 && operation.recording != recorder_.recording()) return;
  activate(gpu_);
  check(cudaStreamWaitEvent(compute_, operation.end, 0), "cudaStreamWaitEvent");
}

bool Communicator::wait_on_host(const Operation& operation, Clock::time_point limit) {
  activate(gpu_);
  Lock lock(mutex_);
  for (int round = 0; !operation.done; ++round) {
    failure_.check();
    try {
      retire(lock);
    } catch (const Error& error) {
      throw CommError(abort(lock, operation.name, error));
    }
    if (operation.done) break;
    if (Clock::now() >= limit) return false;
    lock.unlock();
    pause(round);
    lock.lock();
  }
  return true;
}

/// Removes the operations that have ended; they end in order. Queries without the lock: a query may wait for a launch
/// that waits for room in its queue, and an abort, which alone can end that, takes the lock.
void Communicator::retire(Lock& lock) {
  while (!pending_.empty() && pending_.front()->enqueued) {
    const std::shared_ptr<Operation> oldest = pending_.front();
    lock.unlock();
    float milliseconds = 0;
    cudaError_t status = cudaEventQuery(oldest->end);
    if (status == cudaSuccess && oldest->timed)
      status = cudaEventElapsedTime(&milliseconds, oldest->begin, oldest->end);
    lock.lock();
    if (pending_.empty() || pending_.front() != oldest) continue;  // another thread was faster, or an abort
    if (status == cudaErrorNotReady) return;
    check(status, "cudaEventQuery");
    if (oldest->timed) {
      const std::int64_t now = monotonic_ns();
      Trace::add({.name = "nccl",
                  .kind = TraceEvent::Kind::device_communication,
                  .device = {DeviceKind::cpu, rank()},
                  .begin_ns = now - static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds)),
                  .end_ns = now});
    }
    oldest->done = true;
    pending_.pop_front();
  }
}

/// Waits until the launcher of an elastic job has seen the loss: until then other ranks take what this one's kernels
/// send once they are aborted.
void Communicator::await_loss(Lock& lock) {
  const Clock::time_point limit = Clock::now() + kLossPatience;
  try {
    for (; options_.check && failure_.empty() && Clock::now() < limit; lock.lock()) {
      options_.check();
      lock.unlock();
      std::this_thread::sleep_for(kWatchEvery);
    }
  } catch (const CommError&) {  // there is a newer generation
  }
}

/// Returns the text to be thrown. The first failure counts. Releases the caller's lock while other ranks are notified,
/// which may take long.
std::string Communicator::abort(Lock& lock, const std::string& operation, const std::exception& error) {
  std::string why = error.what();
  if (!closing_) await_loss(lock);
  if (failure_.empty() && dynamic_cast<const RemoteError*>(&error) != nullptr) {
    lock.unlock();
    const std::string other = rendezvous_.wait_for_failure();
    lock.lock();
    if (!other.empty()) why += "; " + other;
  }
  const bool first = failure_.empty();
  const std::string text = failure_.add(operation, rank(), CommError(why));
  if (!first) return text;
  to_abort_ = std::exchange(communicator_, nullptr);
  pending_.clear();
  if (to_abort_ != nullptr) start_abort();
  changed_.notify_all();
  lock.unlock();
  rendezvous_.publish_failure(text);
  lock.lock();
  return text;
}

/// In a thread of its own, or in the watchdog's, which is idle then, where none can be started. Not in the caller's,
/// which may be the one that drops the graphs.
void Communicator::start_abort() {
  try {
    aborting_ = start_thread(concat("the thread that aborts NCCL for rank ", rank()), [this] {
      Lock lock(mutex_);
      abort_now(lock);
    });
  } catch (const Error&) {  // the watchdog sees to_abort_
  }
}

// Note [Abort]: an abort frees the communicator, so NCCL wants no thread within a call on it meanwhile (its user guide,
// "Fault Tolerance"). failure_ therefore keeps a caller from entering NCCL, and one that is there has a second to
// leave. One that does not leave waits for a peer or for room in the launch queue, and only the abort can release it,
// which first of all sets the flag that ends NCCL's kernels and its waits (its init.cc, ncclCommAbort). The rest of
// that call then runs while NCCL frees the communicator: outside of the rule, but otherwise the job hangs. The handle
// is not used after that call.
void Communicator::abort_now(Lock& lock) {
  changed_.wait_for(lock, kLeaveNccl, [this] { return !in_nccl_; });
  const ncclComm_t dead = std::exchange(to_abort_, nullptr);
  lock.unlock();
  if (dead != nullptr) abort_within(options_.group.leave_timeout, dead);
  lock.lock();
}

void Communicator::close(bool drop) noexcept {
  Lock lock(mutex_);
  closing_ = true;
  try {
    activate(gpu_);
    for (int round = 0; !drop && failure_.empty() && !pending_.empty(); ++round) {
      retire(lock);
      lock.unlock();
      pause(round);
      lock.lock();
    }
    if (!drop && failure_.empty()) drop_recordings(lock);
    if (!drop && failure_.empty() && communicator_ != nullptr) drain(lock);
    if (communicator_ != nullptr) abort(lock, "the group", CommError("it was dropped"));
  } catch (const Error& error) {
    abort(lock, "the drain", error);
  }
  drop_recordings(lock);
  stopping_ = true;
  changed_.notify_all();
  lock.unlock();
  if (watchdog_.joinable()) watchdog_.join();
  if (aborting_.joinable()) aborting_.join();
}

/// Finalizes and destroys the communicator. Throws CommError when NCCL does not end it in time, and then owns it no
/// longer, or refuses to.
void Communicator::drain(Lock& lock) {
  BlockingCall call(concat("the thread that ends NCCL for rank ", rank()), [gpu = gpu_, communicator = communicator_] {
    activate(gpu);
    check(ncclCommFinalize(communicator));
    ncclCommDestroy(communicator);
  });
  const ncclComm_t ending = std::exchange(communicator_, nullptr);
  const Milliseconds timeout = options_.group.leave_timeout;
  bool ended = false;
  try {
    const Unlocked blocking(*this, lock);
    ended = call.wait_until(Clock::now() + timeout);
  } catch (...) {
    communicator_ = ending;  // not finalized
    throw;
  }
  require<CommError>(ended, "NCCL has not ended it within ", timeout.count(),
                     " ms; the thread that ends it is left running");
  failure_.close();
}

bool Communicator::records() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(compute_, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Communicator::Recorded& Communicator::recorded_now() {
  const int recording = recorder_.recording();
  require<UsageError>(recording != 0, options_.device,
                      " is captured by other code, whose replays NCCL is not notified of");
  if (recorded_ != nullptr && recorded_->recording == recording) return *recorded_;
  const auto fresh = std::make_shared<Recorded>(*this, recording);
  recorder_.attach(fresh);
  recordings_.push_back(recording);
  recorded_ = fresh;
  return *recorded_;
}

std::shared_ptr<Operation> Communicator::record(const std::string& what, const Calls& calls) {
  Lock lock(mutex_);
  failure_.check();
  Recorded& recorded = recorded_now();
  const auto operation = take_operation(concat("recording ", what), false, options_.group.timeout);
  operation->recording = recorded.recording;
  // A failure up to here invalidates the capture, not the communicator.
  check(cudaEventRecord(ready_, compute_), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_, ready_, 0), "cudaStreamWaitEvent");
  pending_.push_back(operation);  // NCCL may wait for the others to connect
  changed_.notify_all();
  try {
    enqueue(lock, calls, operation->end);
  } catch (const Error& error) {
    throw CommError(abort(lock, operation->name, error));
  }
  std::erase(pending_, operation);
  ++recorded.collectives;
  return operation;
}

void Communicator::replay(const Recorded& recorded, FunctionRef<void()> launch) {
  Lock lock(mutex_);
  failure_.check();
  const auto operation = take_operation("a recorded step from collective", true, options_.group.timeout);
  collectives_ += recorded.collectives - 1;
  operation->timed = false;
  pending_.push_back(operation);
  changed_.notify_all();
  lock.unlock();  // the launch may wait for room in the GPU's queue
  try {
    launch();
    check(cudaEventRecord(operation->end, compute_), "cudaEventRecord");
  } catch (const Error& error) {
    lock.lock();
    abort(lock, operation->name, error);
    throw;
  }
  lock.lock();
  operation->enqueued = true;
}

void Communicator::drop_recordings(Lock& lock) noexcept {
  const auto recordings = std::exchange(recordings_, {});
  recorded_.reset();
  lock.unlock();  // dropping waits for the device, which the watchdog may have to unblock by an abort
  for (const int recording : recordings) {
    if (recorder_.recording() == recording) recorder_.cancel();
    recorder_.drop(recording);
  }
  lock.lock();
}

void Communicator::watch() {
  // Another thread may capture a graph meanwhile, which event queries must not invalidate.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaSetDevice(gpu_);
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      return stopping_ || to_abort_ != nullptr || (failure_.empty() && (!pending_.empty() || headers_.fresh()));
    });
    if (to_abort_ != nullptr) abort_now(lock);
    if (stopping_) return;
    const std::string oldest = pending_.empty() ? "the group" : pending_.front()->name;
    try {
      check_progress(lock);
    } catch (const std::exception& error) {
      abort(lock, oldest, error);
    }
    changed_.wait_for(lock, kWatchEvery, [this] { return stopping_; });
  }
}

/// Throws the error that it finds.
void Communicator::check_progress(Lock& lock) {
  if (options_.check && !pending_.empty()) options_.check();  // first: retire() may wait for what only an abort ends
  retire(lock);
  if (communicator_ != nullptr) compare_headers(lock);
  if (pending_.empty() || communicator_ == nullptr) return;
  const auto oldest = pending_.front();
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(communicator_, &state));
  check(state);
  if (Clock::now() - oldest->started >= kSlow) check_peers(lock, *oldest);
}

void Communicator::note_header(const Call& call) {
  const Lock lock(mutex_);
  headers_.add(call);
}

// Note [Headers]: NCCL does not compare what ranks call: it hangs, or adds unrelated buffers. An exchange before
// each call would cost more than the call. So the watchdog publishes this rank's last headers soon
// after the calls, 20 times a second at most, and compares theirs. The rank that publishes last finds a difference, and
// aborts. Results from before that moment may be wrong, but the job ends. An elastic job's store is memory and keeps
// all that was ever set, so its ranks publish the hash of their headers only, and seldom.
void Communicator::compare_headers(Lock& lock) {
  const Clock::time_point now = Clock::now();
  if (!headers_.fresh() || now < next_comparison_) return;
  const bool elastic = options_.check != nullptr;
  next_comparison_ = now + (elastic ? kCompareElasticEvery : kCompareEvery);
  const std::string own = headers_.text(!elastic);
  lock.unlock();
  std::vector<std::string> all;
  try {
    all = rendezvous_.exchange_headers(own);
  } catch (const CommError&) {  // at the end of a job the store may close first
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  const std::string text = headers_.difference(all, rank());
  require<CommError>(text.empty(), text);
}

void Communicator::check_peers(Lock& lock, const Operation& oldest) {
  const std::uint64_t count = collectives_;
  const bool late = Clock::now() >= oldest.deadline;
  lock.unlock();
  std::string other, missing;
  try {
    if (std::exchange(published_, count) != count) rendezvous_.publish_started(count);
    other = rendezvous_.failure();
    if (late && oldest.collective) missing = rendezvous_.ranks_before(oldest.number);
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  require<CommError>(other.empty(), other);
  const auto timeout = std::chrono::duration_cast<Milliseconds>(oldest.deadline - oldest.started);
  require<CommError>(!late || oldest.done, "it has not ended within ", timeout.count(), " ms",
                     missing.empty() ? "" : concat("; ", missing, " did not join it"));
}

}  // namespace duet::ddp::nccl
