#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

/// Waits for operations of a device; their failure is the device's sticky error.
cudaError_t wait_for(Lock& lock, const Ops& work, int device) {
  if (forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t error = drain(lock, work);
  return error != cudaSuccess ? error : state().sticky[device];
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

cudaError_t wait_for_room(Lock& lock, cudaStream_t stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& queue = stream->queue;
  while (!queue.empty() && queue.front()->done) queue.pop_front();
  const bool full = queue.size() >= static_cast<std::size_t>(setting("DUET_SIM_QUEUE", 1024));
  return full && stream->capture == nullptr ? drain(lock, {queue.front()}) : cudaSuccess;
}

cudaError_t submit(cudaStream_t given, const Maker& make) {
  State& s = state();
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (given == nullptr && forbidden_by_capture()) return cudaErrorStreamCaptureImplicit;
  if (stream->capture != nullptr) return record_node(stream, make);
  if (s.sticky[stream->device] != cudaSuccess) return s.sticky[stream->device];
  stream->add(make({stream->tail}));
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t given, Op op) {
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  op.device = stream->device;
  if (op.reach == 0) op.reach = 1u << op.device;
  if (!pointers_sound(op)) return cudaErrorIllegalAddress;
  return submit(given, Maker([op](const Ops& before) { return schedule(op, before); }));
}

}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int priority) {
  return call("cudaStreamCreateWithPriority", [&](Lock&) {
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;  // duet has no others
    state().contexts |= 1u << current_device();
    *made = new CUstream_st{current_device(), priority, nullptr, {}, nullptr, {}};
    state().streams.insert(*made);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(state().mutex);
  if (!state().streams.erase(stream)) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) invalidate(stream->capture, cudaSuccess);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  return call("cudaStreamSynchronize", given, [&](Lock& lock, cudaStream_t stream) {
    if (stream->capture) return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
    return wait_for(lock, {stream->tail}, stream->device);
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", given, [&](Lock&, cudaStream_t stream) {
    if (stream->capture || event->capture) return join_capture(stream, event);
    if (event->record == nullptr) return cudaSuccess;
    Op op{"cudaStreamWaitEvent"};
    op.device = stream->device;
    stream->add(schedule(op, {stream->tail, event->record}));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Lock&) {
    state().contexts |= 1u << current_device();
    *event = new CUevent_st{current_device(), !(flags & cudaEventDisableTiming), nullptr, nullptr, nullptr, {}};
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(state().mutex);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  return call("cudaEventRecord", given, [&](Lock&, cudaStream_t stream) {
    if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
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
    return error;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Lock& lock) {
    if (event->capture) return invalidate(event->capture, cudaErrorCapturedEvent);
    return wait_for(lock, {event->record}, event->device);
  });
}
/// Runs one operation: repeated queries find the work done.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Lock& lock) {
    if (event->capture) return invalidate(event->capture, cudaErrorCapturedEvent);
    if (forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
    const OpPtr work = event->record;  // another thread may record the event again meanwhile
    const int device = event->device;
    if (work != nullptr && !work->done) run_one(lock);
    if (state().sticky[device] != cudaSuccess) return state().sticky[device];
    return work == nullptr || work->done ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Lock&) {
    if (!start->timed || !end->timed || !start->record || !end->record || start->device != end->device)
      return cudaErrorInvalidResourceHandle;
    if (!start->record->done || !end->record->done) return cudaErrorNotReady;
    *ms = static_cast<float>(*end->time_ms - *start->time_ms);
    return cudaSuccess;
  });
}

}  // extern "C"
