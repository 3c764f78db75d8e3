#include "ddp/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "ddp/nccl/check.h"
#include "lib/backend/backend.h"
#include "lib/base/start_thread.h"

namespace duet::ddp::nccl {
namespace {

constexpr std::chrono::microseconds kPollEvery{50};
constexpr int kSpins = 100;

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
  const ncclUniqueId id = rendezvous_.share_id(options.connect_timeout);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  ready_ = make_event(cudaEventDisableTiming);
  const auto connecting = take_operation("connecting", true, options.connect_timeout);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Lock lock(mutex_);
  pending_.push_back(connecting);
  watchdog_ = start_thread(concat("the thread that watches NCCL for rank ", rank), [this] { watch(); });
  const ncclResult_t result = ncclCommInitRankConfig(&communicator_, size, id, rank, &config);
  try {
    check(result, communicator_);
    settle(lock);
  } catch (const Error& error) {
    const std::string text = abort(lock, connecting->name, error);
    lock.unlock();
    close(true);
    release();
    throw CommError(text);
  }
  pending_.clear();
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
    check(cudaEventRecord(ready_, compute_), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, ready_, 0), "cudaStreamWaitEvent");
    check(cudaEventRecord(operation->begin, stream_), "cudaEventRecord");
    check(calls(communicator_, stream_), communicator_);
    settle(lock);
    check(cudaEventRecord(operation->end, stream_), "cudaEventRecord");
  } catch (const Error& error) {
    throw CommError(abort(lock, operation->name, error));
  }
  operation->enqueued = true;
  return operation;
}

/// Waits until NCCL has accepted the operation: only then is it on the stream. The watchdog enforces the deadline.
void Communicator::settle(Lock& lock) {
  for (int round = 0;; ++round) {
    failure_.check();
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(communicator_, &state), communicator_);
    if (state == ncclSuccess) return;
    check(state, communicator_);
    lock.unlock();
    pause(round);
    lock.lock();
  }
}

void Communicator::wait(const Operation& operation) {
  const Lock lock(mutex_);
  if (operation.done) return;
  failure_.check();
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
      retire();
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

/// Removes the operations that have ended; they end in order.
void Communicator::retire() {
  while (!pending_.empty() && pending_.front()->enqueued) {
    Operation& oldest = *pending_.front();
    const cudaError_t status = cudaEventQuery(oldest.end);
    if (status == cudaErrorNotReady) return;
    check(status, "cudaEventQuery");
    float milliseconds = 0;
    if (oldest.timed) check(cudaEventElapsedTime(&milliseconds, oldest.begin, oldest.end), "cudaEventElapsedTime");
    busy_us_.store(busy_us_.load(std::memory_order_relaxed) + 1e3 * static_cast<double>(milliseconds),
                   std::memory_order_relaxed);
    oldest.done = true;
    pending_.pop_front();
  }
}

/// Returns the text to be thrown. The first failure counts. Releases the caller's lock while NCCL and the other ranks
/// are notified, which may take long.
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
  const ncclComm_t dead = std::exchange(communicator_, nullptr);
  const bool lingers = dead != nullptr && !recordings_.empty();  // until their graphs are gone
  if (lingers) abort_in_thread(dead);
  pending_.clear();
  changed_.notify_all();
  lock.unlock();
  if (dead != nullptr && !lingers) ncclCommAbort(dead);
  rendezvous_.publish_failure(text);
  lock.lock();
  return text;
}

/// In a thread of its own, or in the watchdog's, which is idle then, where none can be started. Not in the caller's,
/// which may be the one that drops the graphs.
void Communicator::abort_in_thread(ncclComm_t dead) {
  try {
    aborting_ = start_thread(concat("the thread that aborts NCCL for rank ", rank()), [dead] { ncclCommAbort(dead); });
  } catch (const Error&) {
    to_abort_ = dead;
  }
}

void Communicator::close(bool drop) noexcept {
  Lock lock(mutex_);
  try {
    activate(gpu_);
    for (int round = 0; !drop && failure_.empty() && !pending_.empty(); ++round) {
      retire();
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

/// Drains and destroys the communicator; leaves it to abort() where the other ranks do not drain theirs in time.
void Communicator::drain(Lock& lock) {
  check(ncclCommFinalize(communicator_), communicator_);
  const auto limit = Clock::now() + options_.group.leave_timeout;
  for (int round = 0;; ++round) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(communicator_, &state), communicator_);
    check(state, communicator_);
    if (state == ncclSuccess) break;
    if (Clock::now() >= limit) return;
    lock.unlock();
    pause(round);
    lock.lock();
  }
  ncclCommDestroy(std::exchange(communicator_, nullptr));
  failure_.close();
}

}  // namespace duet::ddp::nccl
