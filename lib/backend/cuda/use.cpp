// What devices hold, what was moved, and which GPUs reach each other: for reports.
#include <dlfcn.h>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/memory.h"

namespace duet::cuda {

std::string nccl_version() {
  using GetVersion = int (*)(int*);
  constexpr const char* kName = "ncclGetVersion";
  void* library = nullptr;
  auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, kName));  // here already?
  if (get == nullptr) {
    library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (library != nullptr) get = reinterpret_cast<GetVersion>(::dlsym(library, kName));
  }
  int version = 0;
  const bool known = get != nullptr && get(&version) == 0;
  if (library != nullptr) ::dlclose(library);
  return known ? concat(", NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100) : "";
}

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
