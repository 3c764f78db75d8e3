// Times of the parts of a step, on devices that run behind the host.
#pragma once

#include <span>

#include "lib/device.h"

namespace duet {

/// Once turned on, loops and wrappers wait for their devices at the end of each part of a step, so that the host's
/// clock has what the part takes. For processes that time parts: whole steps take longer. Thread-safe.
class TimedParts {
 public:
  static void turn_on();
  /// Waits for everything asked of these devices, if it is on.
  static void end_part(std::span<const Device> devices);
};

}  // namespace duet
