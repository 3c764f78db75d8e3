// Streams, events, and copies.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

/// Waits for operations of a device; their failure is the device's sticky error.
cudaError_t wait_for(Lock& lock, const Ops& work, int device) {
  if (forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t error = drain(lock, work);
  return error != cudaSuccess ? error : state().sticky[device];
}

/// `count` rows of `width` bytes, which start `to_pitch` and `from_pitch` apart.
struct Rows {
  std::size_t to_pitch, from_pitch, width, count;
};

/// Pageable memory is read at the call (staged), and the call returns when it is written; pinned and device memory are
/// read and written when the stream gets there.
cudaError_t copy(const char* function, void* to, const void* from, const Rows& rows, cudaMemcpyKind kind,
                 cudaStream_t given) {
  return call(function, given, [&](Lock& lock, cudaStream_t stream) {
    if (rows.width > rows.to_pitch || rows.width > rows.from_pitch) return cudaErrorInvalidValue;
    if (rows.width == 0 || rows.count == 0) return cudaSuccess;
    const auto extent = [&](std::size_t pitch) { return (rows.count - 1) * pitch + rows.width; };
    int to_device = kHost, from_device = kHost;
    const Place target = place_of(to, extent(rows.to_pitch), &to_device),
                source = place_of(from, extent(rows.from_pitch), &from_device);
    if (target == Place::bad || source == Place::bad) return cudaErrorInvalidValue;
    if ((to_device >= 0) != (kind != cudaMemcpyDeviceToHost) || (from_device >= 0) != (kind != cudaMemcpyHostToDevice))
      return cudaErrorInvalidMemcpyDirection;
    const bool pageable = target == Place::pageable || source == Place::pageable;
    if ((pageable || std::strcmp(function, "cudaMemcpyPeerAsync") == 0) && stream->capture)
      return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
    if (target == Place::pageable && forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
    Op op{function};
    for (int device : {to_device, from_device})
      if (device >= 0) op.reach |= 1u << device;
    std::shared_ptr<std::vector<char>> staged;
    if (source == Place::pageable) {
      const char* bytes = static_cast<const char*>(from);
      staged = std::make_shared<std::vector<char>>(bytes, bytes + extent(rows.from_pitch));
    }
    op.body = [=] {
      const char* start = staged ? staged->data() : static_cast<const char*>(from);
      for (std::size_t row = 0; row < rows.count; ++row)
        std::memcpy(static_cast<char*>(to) + row * rows.to_pitch, start + row * rows.from_pitch, rows.width);
    };
    cudaError_t error = submit(given, op);
    if (error == cudaSuccess && target == Place::pageable) error = drain(lock, {stream->tail});
    return error != cudaSuccess || target != Place::pageable ? error : state().sticky[stream->device];
  });
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
    stream->add(schedule(Op("cudaStreamWaitEvent", stream->device), {stream->tail, event->record}));
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

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", dst, src, {count, count, count, 1}, kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpy2DAsync", dst, src, {dpitch, spitch, width, height}, kind, stream);
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice, size_t count,
                                cudaStream_t stream) {
  int to = kHost, from = kHost;
  const bool known = place_of(dst, count, &to) == Place::device && place_of(src, count, &from) == Place::device;
  if (count != 0 && (!known || to != dstDevice || from != srcDevice)) {
    report("cudaMemcpyPeerAsync from device %d to %d is given memory of %d and %d", srcDevice, dstDevice, from, to);
    return set_last(cudaErrorInvalidValue);
  }
  return copy("cudaMemcpyPeerAsync", dst, src, {count, count, count, 1}, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t given) {
  return call("cudaMemsetAsync", given, [&](Lock&, cudaStream_t) {
    if (count == 0) return cudaSuccess;
    int device = kHost;
    const Place place = place_of(p, count, &device);
    if (place == Place::bad || place == Place::pageable) return cudaErrorInvalidValue;
    Op op{"cudaMemsetAsync"};
    if (device >= 0) op.reach = 1u << device;
    op.body = [=] { std::memset(p, value, count); };
    return submit(given, op);
  });
}
