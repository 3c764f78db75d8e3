// Names of devices: "cpu:0", "cuda:0", and "cuda:0.1" for a logical device on a shared GPU.
#pragma once

#include <compare>
#include <iosfwd>
#include <string>
#include <vector>

namespace duet {

enum class DeviceKind { cpu, cuda };

/// One place where tensors live and kernels run. cpu:0..k are real devices, each with its own thread(s); several
/// threads may compute on one of them at the same time.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  int logical = -1;  // >= 0: one of several devices that share the physical GPU `index`

  /// "cpu:0", "cuda:1", "cuda:0.1".
  std::string str() const;
  auto operator<=>(const Device&) const = default;
};

const char* name(DeviceKind kind);
std::ostream& operator<<(std::ostream& out, const Device& device);

/// The first `count` devices of a kind: cpu:0 .. cpu:count-1. Throws UsageError unless 1 <= count <= 1024.
std::vector<Device> first_devices(DeviceKind kind, int count);

}  // namespace duet
