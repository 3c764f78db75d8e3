#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

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
}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

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

}  // extern "C"
