#include "lib/backend/backend.h"

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cuda_module.h"

namespace duet {

const char* name(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::tf32: return "tf32";
    case Precision::bf16: return "bf16";
  }
  return "?";
}

Precision parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16})
    if (text == name(precision)) return precision;
  throw UsageError(concat("unknown precision '", text, "', expected fp32, tf32 or bf16"));
}

Backend& backend(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_backend();
  // Never destroyed: tensors in static storage may outlive any order of destructors.
  static auto* const cpu = new cpu::CpuBackend();
  return *cpu;
}

Allocator& allocator(Device device) { return backend(device.kind).allocator(device); }

}  // namespace duet
