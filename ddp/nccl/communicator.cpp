#include "ddp/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ddp/nccl/check.h"
#include "lib/backend/backend.h"
#include "lib/base/start_thread.h"

namespace duet::ddp::nccl {
namespace {

constexpr std::chrono::microseconds kPollEvery{50};
constexpr int kSpins = 100;
constexpr Milliseconds kLeaveNccl{1000};  // for a caller, before its communicator is aborted all the same

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

}  // namespace

Operation::~Operation() {
  for (const cudaEvent_t event : {begin, end})
    if (event != nullptr) cudaEventDestroy(event);
}

Communicator::Communicator(std::shared_ptr<Store> store, int rank, int size, const NcclOptions& options)
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
  connect();
}

Communicator::~Communicator() {
  close(true);
  release();
}

void Communicator::release() {
  operations_.clear();
  if (ready_ != nullptr) cudaEventDestroy(ready_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
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
    busy_us_.store(busy_us_.load(std::memory_order_relaxed) + 1e3 * static_cast<double>(milliseconds),
                   std::memory_order_relaxed);
    oldest->done = true;
    pending_.pop_front();
  }
}

/// Returns the text to be thrown. The first failure counts. Releases the caller's lock while other ranks are notified,
/// which may take long.
std::string Communicator::abort(Lock& lock, const std::string& operation, const Error& error) {
  std::string why = error.what();
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
  if (dead != nullptr) ncclCommAbort(dead);
  lock.lock();
}

void Communicator::close(bool drop) noexcept {
  Lock lock(mutex_);
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

}  // namespace duet::ddp::nccl
