#include "lib/backend/cpu/cpu_device.h"

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "lib/error.h"

namespace duet::cpu {
namespace {

/// Makes instances, and keeps those that no thread uses. Thread-safe.
class IdleDevices {
 public:
  std::unique_ptr<CpuDevice> take(int index) {
    const std::lock_guard lock(mutex_);
    Instances& instances = instances_[static_cast<std::size_t>(index)];
    if (instances.idle.empty()) {
      instances.idle.reserve(static_cast<std::size_t>(instances.made) + 1);  // give_back() must not throw
      auto device = std::make_unique<CpuDevice>(index, threads_, instances.made == 0);
      ++instances.made;
      any_made_ = true;
      return device;
    }
    auto device = std::move(instances.idle.back());
    instances.idle.pop_back();
    return device;
  }

  void give_back(int index, std::unique_ptr<CpuDevice> device) noexcept {
    const std::lock_guard lock(mutex_);
    instances_[static_cast<std::size_t>(index)].idle.push_back(std::move(device));
  }

  void set_threads(int threads) {
    const std::lock_guard lock(mutex_);
    require<UsageError>(!any_made_, "threads per device must be set before the first kernel runs");
    threads_ = threads;
  }

 private:
  struct Instances {
    std::vector<std::unique_ptr<CpuDevice>> idle;
    int made = 0;
  };
  std::mutex mutex_;
  int threads_ = 1;
  bool any_made_ = false;
  std::array<Instances, kCpuDevices> instances_;
};

/// Never destroyed: threads may end after any destructor of a static object.
IdleDevices& idle_devices() {
  static auto* const devices = new IdleDevices();
  return *devices;
}

/// The instances of one thread, by index of the device.
struct OwnDevices {
  OwnDevices() = default;
  OwnDevices(const OwnDevices&) = delete;
  OwnDevices& operator=(const OwnDevices&) = delete;
  ~OwnDevices() {
    for (std::size_t i = 0; i < devices.size(); ++i)
      if (devices[i]) idle_devices().give_back(static_cast<int>(i), std::move(devices[i]));
  }
  std::vector<std::unique_ptr<CpuDevice>> devices;
};

}  // namespace

float* Scratch::floats(std::int64_t count) {
  if (!memory_.defined() || memory_.count() < count) memory_ = empty({count});
  return memory_.data<float>();
}

CpuDevice::CpuDevice(int index, int threads, bool pin)
    : workers_(static_cast<std::size_t>(threads)), pool_(threads, [index, threads, pin](int worker) {
        if (pin && (index + 1) * threads <= own_cores()) pin_current_thread(index * threads + worker);
      }) {}

CpuDevice& thread_device(int index) {
  thread_local OwnDevices own;
  const auto at = static_cast<std::size_t>(index);
  if (at >= own.devices.size()) own.devices.resize(at + 1);
  if (!own.devices[at]) own.devices[at] = idle_devices().take(index);
  return *own.devices[at];
}

void set_device_threads(int threads) { idle_devices().set_threads(threads); }

}  // namespace duet::cpu
