#include "lib/backend/backend.h"

#include "lib/backend/cpu/cpu_backend.h"

namespace duet {

Backend& backend(DeviceKind kind) {
  // Never destroyed: tensors in static storage may outlive any order of destructors.
  static auto* const cpu = new cpu::CpuBackend();
  require<DeviceError>(kind == DeviceKind::cpu, "no CUDA device: this build has no CUDA backend");
  return *cpu;
}

Allocator& allocator(Device device) { return backend(device.kind).allocator(device); }

}  // namespace duet
