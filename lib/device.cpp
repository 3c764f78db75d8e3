#include "lib/device.h"

#include <ostream>

#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet {
namespace {

constexpr int kMaxDevices = 1024;

/// -1 when `text` is anything else than a whole non-negative number.
int index_of(std::string_view text) { return text.starts_with('-') ? -1 : parse_number<int>(text).value_or(-1); }

}  // namespace

const char* name(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

std::string Device::str() const {
  std::string text = concat(name(kind), ":", index);
  if (logical >= 0) text += concat(".", logical);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

Device parse_device(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  Device device;
  bool good = kind == "cpu" || kind == "cuda";
  device.kind = kind == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  if (good && colon != std::string_view::npos) {
    const std::string_view rest = text.substr(colon + 1);
    const auto dot = rest.find('.');
    device.index = index_of(rest.substr(0, dot));
    if (dot != std::string_view::npos) {
      device.logical = index_of(rest.substr(dot + 1));
      good = device.kind == DeviceKind::cuda && device.logical >= 0;
    }
  }
  require<UsageError>(good && device.index >= 0 && device.index < kMaxDevices, "unknown device '", text,
                      "', expected cpu, cpu:N, cuda, cuda:N or cuda:N.L with N below ", kMaxDevices);
  return device;
}

std::vector<Device> first_devices(DeviceKind kind, int count) {
  require<UsageError>(count >= 1 && count <= kMaxDevices, "number of devices is ", count, ", expected 1 to ",
                      kMaxDevices);
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({kind, i});
  return devices;
}

}  // namespace duet
