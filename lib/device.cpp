#include "lib/device.h"

#include <charconv>
#include <ostream>
#include <system_error>

#include "lib/error.h"

namespace duet {
namespace {

constexpr int kMaxDevices = 1024;

/// Reads a whole non-negative number; false when `text` is anything else.
bool read_number(std::string_view text, int& number) {
  if (text.empty() || text.front() == '-' || text.front() == '+') return false;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size();
}

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
    good = read_number(rest.substr(0, dot), device.index);
    if (good && dot != std::string_view::npos)
      good = device.kind == DeviceKind::cuda && read_number(rest.substr(dot + 1), device.logical);
  }
  require<UsageError>(good && device.index < kMaxDevices, "unknown device '", text,
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
