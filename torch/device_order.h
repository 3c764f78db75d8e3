// Work of duet and of LibTorch on the same memory of one device, in order.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <optional>
#include <string>

#include "lib/backend/backend.h"
#include "lib/device.h"
#include "lib/error.h"
#include "torch/versions.h"

namespace duet::torch {

/// Converts LibTorch's device, of kind cpu or cuda, to duet's: both count the GPUs that the process sees.
inline Device device_of(const c10::Device& device) {
  return device.is_cpu() ? Device{} : Device{DeviceKind::cuda, device.index()};
}

/// The other way around. Throws DeviceError for a logical device, which LibTorch has not.
inline c10::Device torch_device(Device device) {
  require<DeviceError>(device.logical < 0, "LibTorch has no logical devices such as ", device);
  return device.kind == DeviceKind::cpu ? c10::Device(c10::kCPU)
                                        : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
}

/// LibTorch's current stream of the calling thread there, as its vendor's type; null on CPU. Throws DeviceError where
/// this version of LibTorch does not give it.
inline void* current_stream(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  const std::optional<void*> handle = native_handle(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  require<DeviceError>(handle.has_value(), "tensors on ", device.str(),
                       " need c10::Stream::native_handle(), which LibTorch 2.15 has, this is ", TORCH_VERSION);
  return *handle;
}

// Note [Ready events]: everything of duet's on a device, NCCL's collectives included, is ordered on one stream
// (Backend::stream), so an event between that stream and LibTorch's is enough for any call. A ready event in each
// ReducerSlot would order the buckets only, but neither broadcasts nor zeros nor blocks.

/// duet's work on memory that LibTorch uses, too: what duet is asked for while this lives runs after what LibTorch's
/// current stream was asked for before. Makes duet's calls leave the thread's current device as it was. Used by one
/// thread, for a short time.
class DuetWork {
 public:
  explicit DuetWork(const c10::Device& device) : guard_(device), device_(device) { after_torch(); }
  DuetWork(const DuetWork&) = delete;
  DuetWork& operator=(const DuetWork&) = delete;

  /// For what LibTorch was asked since.
  void after_torch() const {
    if (!device_.is_cpu()) duet_backend().order(device(), current_stream(device_), duet_backend().stream(device()));
  }
  /// What LibTorch's current stream is asked for from now on runs after duet's work so far.
  void before_torch() const {
    if (!device_.is_cpu()) duet_backend().order(device(), duet_backend().stream(device()), current_stream(device_));
  }
  Device device() const { return device_of(device_); }

 private:
  Backend& duet_backend() const { return backend(device().kind); }

  c10::DeviceGuard guard_;
  c10::Device device_;
};

/// Loads libtorch_cuda, once, where there are GPUs for duet: programs use none of its functions by name, and LibTorch
/// looks for it when it is first used, and never again. Returns why LibTorch cannot use GPUs; empty if it can.
inline const std::string& why_no_torch_cuda() {
  static const std::string reason = [] {
    if (std::string why = why_no_cuda(); !why.empty()) return why;
    const char* const file = "libtorch_cuda.so";
    const bool there = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
    if (!there && ::dlopen(file, RTLD_NOW | RTLD_LOCAL) == nullptr) return std::string(::dlerror());
    if (at::globalContext().hasCUDA()) return std::string();
    return concat("LibTorch was used before ", file, " was loaded, or finds no GPU: link the program with it");
  }();
  return reason;
}

/// LibTorch's work on memory of duet's: what its current stream is asked for while this lives runs after duet's work so
/// far, and duet's work after end() runs after it. The thread's current device is that device meanwhile. Used by one
/// thread.
class TorchWork {
 public:
  /// Throws DeviceError where LibTorch has no such device.
  explicit TorchWork(Device device) : order_(loaded(device)) { order_.before_torch(); }
  ~TorchWork() {
    if (ended_) return;
    try {
      order_.after_torch();
    } catch (...) {  // the error of the work is on its way
    }
  }
  TorchWork(const TorchWork&) = delete;
  TorchWork& operator=(const TorchWork&) = delete;

  /// Orders what comes after duet's work so far once more: for memory that duet has allocated meanwhile.
  void after_duet() const { order_.before_torch(); }
  /// Ends the work; not called where it throws.
  void end() {
    ended_ = true;
    order_.after_torch();
  }

 private:
  static c10::Device loaded(Device device) {
    const c10::Device own = torch_device(device);
    const std::string why = own.is_cpu() ? "" : why_no_torch_cuda();
    require<DeviceError>(why.empty(), "LibTorch ", TORCH_VERSION, " has no ", own.str(), ": ", why);
    return own;
  }

  DuetWork order_;
  bool ended_ = false;
};

}  // namespace duet::torch
