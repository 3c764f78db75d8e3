// What devices hold, what was moved, and which GPUs reach each other: for reports.
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/memory.h"

namespace duet::cuda {

DeviceUse CudaBackend::use(Device device) {
  const DeviceMemory& memory = on(device).memory();
  const DeviceMemory::Use held = memory.use();
  DeviceUse use{
      .total = 0, .free = 0, .held = held.held, .used = held.used, .peak = held.peak, .moved = memory.moved()};
  check(cudaMemGetInfo(&use.free, &use.total), "cudaMemGetInfo");
  return use;
}

bool CudaBackend::copies_directly(Device from, Device to) {
  if (from.index == to.index) return true;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, to.index, from.index), "cudaDeviceCanAccessPeer");
  return possible != 0;
}

}  // namespace duet::cuda
