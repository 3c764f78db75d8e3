#include "lib/backend/cuda/device_table.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lib/error.h"

namespace duet::cuda {

DeviceTable::DeviceTable(int gpus, std::function<CudaDevice*(Device)> make) : gpus_(gpus), make_(std::move(make)) {
  require<DeviceError>(gpus <= static_cast<int>(kMaxGpus), gpus, " GPUs, expected at most ", kMaxGpus);
}

CudaDevice& DeviceTable::find(Device device) {
  const bool exists = device.kind == DeviceKind::cuda && device.index >= 0 && device.index < gpus_ &&
                      device.logical >= -1 && device.logical < static_cast<int>(kMaxLogical);
  require<DeviceError>(exists, "there is no device ", device, ", only ", gpus_, gpus_ == 1 ? " GPU" : " GPUs",
                       " of up to ", kMaxLogical, " logical devices");
  Slot& slot = devices_[static_cast<std::size_t>(device.index)][static_cast<std::size_t>(device.logical + 1)];
  if (CudaDevice* const made = slot.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(devices_mutex_);
  if (CudaDevice* const made = slot.load(std::memory_order_acquire)) return *made;
  CudaDevice* const fresh = make_(device);
  slot.store(fresh, std::memory_order_release);
  return *fresh;
}

std::vector<CudaDevice*> DeviceTable::on_gpu(int physical) const {
  std::vector<CudaDevice*> made;
  for (const Slot& slot : devices_[static_cast<std::size_t>(physical)])
    if (CudaDevice* const device = slot.load(std::memory_order_acquire)) made.push_back(device);
  return made;
}

void DeviceTable::copy(CudaDevice& to, void* destination, CudaDevice& from, const void* source, std::size_t bytes) {
  to.wait_for(from);
  enqueue_copy(to, destination, from, source, bytes);
  // From here on the source's own stream may overwrite, release or reuse its memory.
  from.wait_for(to);
  to.activate();
}

void DeviceTable::enqueue_copy(CudaDevice& to, void* destination, CudaDevice& from, const void* source,
                               std::size_t bytes) {
  to.activate();
  to.count_moved(bytes);
  from.count_moved(bytes);
  if (enable_peer_access(to, from)) {
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, to.stream()), "copy");
  } else {
    // The driver stages this copy through pinned host memory, in the same order; it cannot be part of a graph.
    check(cudaMemcpyPeerAsync(destination, to.physical(), source, from.physical(), bytes, to.stream()), "copy");
  }
}

bool DeviceTable::enable_peer_access(const CudaDevice& a, const CudaDevice& b) {
  if (a.physical() == b.physical()) return true;
  const auto [low, high] =
      std::minmax({static_cast<std::size_t>(a.physical()), static_cast<std::size_t>(b.physical())});
  const std::lock_guard lock(peers_mutex_);
  if (peers_[low][high]) return *peers_[low][high];
  bool both = true;
  for (const auto& [own, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, own->physical(), other->physical()), "cudaDeviceCanAccessPeer");
    both = both && possible != 0;
    if (!possible) continue;
    own->activate();
    const cudaError_t status = cudaDeviceEnablePeerAccess(other->physical(), 0);
    if (status != cudaErrorPeerAccessAlreadyEnabled && status != cudaErrorTooManyPeers)
      check(status, "cudaDeviceEnablePeerAccess");
    if (status != cudaSuccess) cudaGetLastError();
    // A GPU has a limited number of peers; copies from and to the others are staged through host memory.
    both = both && status != cudaErrorTooManyPeers;
  }
  peers_[low][high] = both;
  a.activate();
  return both;
}

bool DeviceTable::can_access_all(std::span<CudaDevice* const> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (!enable_peer_access(*devices[i], *devices[k])) return false;
  return true;
}

}  // namespace duet::cuda
