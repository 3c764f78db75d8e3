// The duet devices on this machine's GPUs, and what crosses from one to another.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"

namespace duet::cuda {

/// Every device that has been used so far. Thread-safe.
class DeviceTable {
 public:
  /// `make` makes a device of one of the GPUs. Throws DeviceError for more GPUs than there is room for.
  DeviceTable(int gpus, std::function<CudaDevice*(Device)> make);

  /// The device, made if this is its first use. Throws DeviceError for one that does not exist.
  CudaDevice& find(Device device);
  /// The devices that have been made on a GPU.
  std::vector<CudaDevice*> on_gpu(int physical) const;

  /// A copy between two devices, in the order of Note [Order] in backend.h.
  void copy(CudaDevice& to, void* destination, CudaDevice& from, const void* source, std::size_t bytes);
  /// The copy alone: on the stream of `to`, unordered with the other device's work.
  void enqueue_copy(CudaDevice& to, void* destination, CudaDevice& from, const void* source, std::size_t bytes);
  /// Whether kernels and copies on each of the devices can access the memory of all of them directly.
  bool can_access_all(std::span<CudaDevice* const> devices);

 private:
  static constexpr std::size_t kMaxGpus = 64, kMaxLogical = 64;
  using Slot = std::atomic<CudaDevice*>;
  /// Enables access of the two GPUs to each other's memory, where the machine allows it; tried once per pair. Returns
  /// whether both have it.
  bool enable_peer_access(const CudaDevice& a, const CudaDevice& b);

  const int gpus_;
  const std::function<CudaDevice*(Device)> make_;
  std::mutex devices_mutex_;
  std::array<std::array<Slot, kMaxLogical + 1>, kMaxGpus> devices_{};  // [gpu][logical + 1]
  std::mutex peers_mutex_;
  std::array<std::array<std::optional<bool>, kMaxGpus>, kMaxGpus> peers_{};  // once tried: whether both have access
};

}  // namespace duet::cuda
