#include "lib/allocator.h"
#include "lib/backend/cpu/memory.h"
#include "lib/error.h"

namespace duet {

Allocator& allocator(Device device) {
  // Never destroyed: tensors in static storage may outlive any order of destructors.
  static auto* const host = new cpu::HostAllocator();
  require<DeviceError>(device.kind == DeviceKind::cpu, "no device ", device, ": this build has no CUDA backend");
  return *host;
}

}  // namespace duet
