#include <cstring>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

/// `rows` runs of `width` bytes, `pitch` apart.
struct Runs {
  std::size_t pitch, width, rows;
  std::size_t extent() const { return width == 0 || rows == 0 ? 0 : (rows - 1) * pitch + width; }
};

void copy_runs(void* to, const Runs& t, const void* from, const Runs& f) {
  for (std::size_t row = 0; row < t.rows; ++row)
    std::memcpy(static_cast<char*>(to) + row * t.pitch, static_cast<const char*>(from) + row * f.pitch, t.width);
}

bool fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

/// Pageable memory is read at the call (staged), and the call returns when it is written; pinned and device memory are
/// read and written when the stream gets there.
cudaError_t copy(const char* name, void* to, const Runs& t, const void* from, const Runs& f, cudaMemcpyKind kind,
                 cudaStream_t given) {
  if (cudaError_t error = enter(name)) return error;
  if (t.width > t.pitch || f.width > f.pitch) return set_last(cudaErrorInvalidValue);
  if (t.extent() == 0) return cudaSuccess;
  std::unique_lock lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  int to_device = kHost, from_device = kHost;
  const Place target = place_of(to, t.extent(), &to_device), source = place_of(from, f.extent(), &from_device);
  if (target == Place::bad || source == Place::bad) return set_last(cudaErrorInvalidValue);
  if (!fits(kind, to_device >= 0, from_device >= 0)) return set_last(cudaErrorInvalidMemcpyDirection);
  const bool pageable = target == Place::pageable || source == Place::pageable;
  if (pageable && stream->capture) return set_last(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  if (target == Place::pageable && forbidden_by_capture()) return set_last(cudaErrorStreamCaptureUnsupported);

  Op op{name};
  for (int device : {to_device, from_device})
    if (device >= 0) op.reach |= 1u << device;
  if (source == Place::pageable) {
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + f.extent());
    op.body = [=] { copy_runs(to, t, staged->data(), f); };
  } else {
    op.body = [=] { copy_runs(to, t, from, f); };
  }
  cudaError_t error = submit(given, op);
  if (error == cudaSuccess && target == Place::pageable) {
    error = drain(lock, {stream->tail});
    if (error == cudaSuccess) error = state().sticky[stream->device];
  }
  return set_last(error);
}

}  // namespace
}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", dst, {count, count, 1}, src, {count, count, 1}, kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpy2DAsync", dst, {dpitch, width, height}, src, {spitch, width, height}, kind, stream);
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice, size_t count,
                                cudaStream_t stream) {
  int to = kHost, from = kHost;
  const bool known = place_of(dst, count, &to) == Place::device && place_of(src, count, &from) == Place::device;
  if (count != 0 && (!known || to != dstDevice || from != srcDevice)) {
    report("cudaMemcpyPeerAsync from device %d to %d is given memory of %d and %d", srcDevice, dstDevice, from, to);
    return set_last(cudaErrorInvalidValue);
  }
  return copy("cudaMemcpyPeerAsync", dst, {count, count, 1}, src, {count, count, 1}, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t stream) {
  if (cudaError_t error = enter("cudaMemsetAsync")) return error;
  if (count == 0) return cudaSuccess;
  std::lock_guard lock(state().mutex);
  int device = kHost;
  const Place place = place_of(p, count, &device);
  if (place == Place::bad || place == Place::pageable) return set_last(cudaErrorInvalidValue);
  Op op{"cudaMemsetAsync"};
  if (device >= 0) op.reach = 1u << device;
  op.body = [=] { std::memset(p, value, count); };
  return set_last(submit(stream, op));
}

}  // extern "C"
