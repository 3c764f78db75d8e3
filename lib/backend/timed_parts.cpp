#include "lib/backend/timed_parts.h"

#include <atomic>

#include "lib/backend/backend.h"

namespace duet {
namespace {

std::atomic<bool> is_on{false};

}  // namespace

void TimedParts::turn_on() { is_on.store(true, std::memory_order_relaxed); }

void TimedParts::end_part(std::span<const Device> devices) {
  if (!is_on.load(std::memory_order_relaxed)) return;
  for (const Device device : devices) backend(device.kind).synchronize(device);
}

}  // namespace duet
