// Collectives that are part of a recorded step, and its replays.
#include "ddp/nccl/recorded.h"

#include <memory>
#include <string>
#include <utility>

#include "ddp/nccl/check.h"
#include "ddp/nccl/communicator.h"

namespace duet::ddp::nccl {

void Recorded::replay(FunctionRef<void()> launch) { communicator.replay(*this, launch); }

bool Communicator::records() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(compute_, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Recorded& Communicator::recorded_now() {
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

}  // namespace duet::ddp::nccl
