#include "lib/device.h"

#include <ostream>

#include "lib/error.h"

namespace duet {
namespace {

constexpr int kMaxDevices = 1024;

}  // namespace

const char* name(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

std::string Device::str() const {
  std::string text = concat(name(kind), ":", index);
  if (logical >= 0) text += concat(".", logical);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

std::vector<Device> first_devices(DeviceKind kind, int count) {
  require<UsageError>(count >= 1 && count <= kMaxDevices, "number of devices is ", count, ", expected 1 to ",
                      kMaxDevices);
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({kind, i});
  return devices;
}

}  // namespace duet
