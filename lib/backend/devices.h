// Which devices this machine has: torch.cuda.device_count() and is_available() of a kind of device.
#pragma once

#include <string>

#include "lib/device.h"

namespace duet {

/// How many devices of a kind this machine has: GPUs, 0 where none can be used; or CPU devices that each have a core of
/// their own. More CPU devices can be used, which then share cores.
int device_count(DeviceKind kind);
/// Whether a device of this kind can be used.
bool is_available(DeviceKind kind);
/// Why none can be used; empty where one can.
std::string why_unavailable(DeviceKind kind);

}  // namespace duet
