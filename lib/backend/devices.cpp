#include "lib/backend/devices.h"

#include "lib/backend/backend.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet {

std::string why_unavailable(DeviceKind kind) {
  if (kind == DeviceKind::cuda && !why_no_cuda().empty()) return why_no_cuda();
  try {
    return backend(kind).device_count() > 0 ? "" : "no device found";
  } catch (const Error& error) {
    return error.what();
  }
}

bool is_available(DeviceKind kind) { return why_unavailable(kind).empty(); }

int device_count(DeviceKind kind) {
  if (kind == DeviceKind::cpu) return usable_cores();
  return is_available(kind) ? backend(kind).device_count() : 0;
}

}  // namespace duet
