// The memory interface of a device. The backends implement it (lib/backend).
#pragma once

#include <cstddef>

#include "lib/device.h"

namespace duet {

/// Memory of one device. All functions are thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes, aligned to 64 or more. Throws DeviceError when there is no memory left.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Takes back what allocate(bytes) gave; keeps it for the next allocation of that size.
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  /// Sets memory of this device to zero bytes, in order with the device's work.
  virtual void clear(void* memory, std::size_t bytes) = 0;
  /// Copies between memory of any two devices of which at least one is this allocator's, in the order of Note [Order]
  /// in lib/backend/backend.h; done when it returns if one of them is a CPU.
  virtual void copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) = 0;
};

/// The allocator of a device. Throws DeviceError, with the reason, when there is no such device.
Allocator& allocator(Device device);

}  // namespace duet
