#include <chrono>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

/// Waits for operations of a device; their failure is the device's sticky error.
cudaError_t wait_for(std::unique_lock<std::mutex>& lock, const Ops& work, int device) {
  if (forbidden_by_capture()) return set_last(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = drain(lock, work);
  return set_last(error != cudaSuccess ? error : state().sticky[device]);
}

/// A step forward, then whether the work is done.
cudaError_t ask_for(std::unique_lock<std::mutex>& lock, const OpPtr& work, int device) {
  if (forbidden_by_capture()) return set_last(cudaErrorStreamCaptureUnsupported);
  if (work != nullptr && !work->done) run_one(lock);
  if (state().sticky[device] != cudaSuccess) return set_last(state().sticky[device]);
  return set_last(work == nullptr || work->done ? cudaSuccess : cudaErrorNotReady);
}

}  // namespace

cudaStream_t resolve(cudaStream_t stream) {
  static CUstream_st* defaults = [] {
    auto* made = new CUstream_st[kMaxDevices]{};
    for (int i = 0; i < kMaxDevices; ++i) made[i].device = i;
    return made;
  }();
  if (stream == nullptr) return &defaults[current_device()];
  return state().streams.count(stream) ? stream : nullptr;
}

cudaError_t submit(cudaStream_t given, const Maker& make) {
  State& s = state();
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (given == nullptr && forbidden_by_capture()) return cudaErrorStreamCaptureImplicit;
  if (stream->capture != nullptr) return record_node(stream, make);
  if (s.sticky[stream->device] != cudaSuccess) return s.sticky[stream->device];
  stream->tail = make({stream->tail});
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t given, Op op) {
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  op.device = stream->device;
  if (op.reach == 0) op.reach = 1u << op.device;
  return submit(given, Maker([op](const Ops& before) { return schedule(op, before); }));
}

}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudaError_t cudaDeviceSynchronize() {
  if (cudaError_t error = enter("cudaDeviceSynchronize")) return error;
  std::unique_lock lock(state().mutex);
  Ops work;
  for (const OpPtr& op : state().pending)
    if (op->device == current_device()) work.push_back(op);
  return wait_for(lock, work, current_device());
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int) {
  if (cudaError_t error = enter("cudaStreamCreateWithPriority")) return error;
  if (flags != cudaStreamNonBlocking) return set_last(cudaErrorNotSupported);  // duet has no others
  std::lock_guard lock(state().mutex);
  state().contexts |= 1u << current_device();
  *made = new CUstream_st{current_device(), nullptr, nullptr, {}};
  state().streams.insert(*made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(state().mutex);
  if (!state().streams.erase(stream)) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) invalidate(stream->capture, cudaSuccess);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  if (cudaError_t error = enter("cudaStreamSynchronize")) return error;
  std::unique_lock lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture) return set_last(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  return wait_for(lock, {stream->tail}, stream->device);
}
cudaError_t cudaStreamQuery(cudaStream_t given) {
  if (cudaError_t error = enter("cudaStreamQuery")) return error;
  std::unique_lock lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture) return set_last(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  return ask_for(lock, OpPtr(stream->tail), stream->device);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned) {
  if (cudaError_t error = enter("cudaStreamWaitEvent")) return error;
  std::lock_guard lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture || event->capture) return set_last(join_capture(stream, event));
  if (event->record == nullptr) return cudaSuccess;
  Op op{"cudaStreamWaitEvent"};
  op.device = stream->device;
  stream->tail = schedule(op, {stream->tail, event->record});
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (cudaError_t error = enter("cudaLaunchHostFunc")) return error;
  std::lock_guard lock(state().mutex);
  Op op{"host function"};
  op.body = [=] { function(data); };
  op.reach = 1u << kMaxDevices;  // no device's memory
  return set_last(submit(stream, op));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (cudaError_t error = enter("cudaEventCreateWithFlags")) return error;
  std::lock_guard lock(state().mutex);
  state().contexts |= 1u << current_device();
  *event = new CUevent_st{current_device(), !(flags & cudaEventDisableTiming), nullptr, nullptr, nullptr, {}};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::lock_guard lock(state().mutex);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  if (cudaError_t error = enter("cudaEventRecord")) return error;
  std::lock_guard lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr || stream->device != event->device) return set_last(cudaErrorInvalidResourceHandle);
  event->capture = stream->capture;
  if (stream->capture != nullptr) {
    event->nodes = stream->last;
    return cudaSuccess;
  }
  event->time_ms = std::make_shared<double>(0);
  Op op{"cudaEventRecord"};
  op.body = [time = event->time_ms] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *time = std::chrono::duration<double, std::milli>(now).count();
  };
  const cudaError_t error = submit(given, op);
  if (error == cudaSuccess) event->record = stream->tail;
  return set_last(error);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (cudaError_t error = enter("cudaEventSynchronize")) return error;
  std::unique_lock lock(state().mutex);
  if (event->capture) return set_last(invalidate(event->capture, cudaErrorCapturedEvent));
  return wait_for(lock, {event->record}, event->device);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (cudaError_t error = enter("cudaEventQuery")) return error;
  std::unique_lock lock(state().mutex);
  if (event->capture) return set_last(invalidate(event->capture, cudaErrorCapturedEvent));
  return ask_for(lock, OpPtr(event->record), event->device);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (cudaError_t error = enter("cudaEventElapsedTime")) return error;
  std::lock_guard lock(state().mutex);
  if (!start->timed || !end->timed || !start->record || !end->record || start->device != end->device)
    return set_last(cudaErrorInvalidResourceHandle);
  if (!start->record->done || !end->record->done) return cudaErrorNotReady;
  *ms = static_cast<float>(*end->time_ms - *start->time_ms);
  return cudaSuccess;
}

}  // extern "C"
