#include "cli/system/devices.h"

#include <algorithm>

#include "ddp/nccl/load.h"
#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

int count_of(DeviceKind kind) {
  const int count = backend(kind).device_count();
  require<DeviceError>(count > 0, "there is no device of kind ", duet::name(kind));
  return count;
}

}  // namespace

std::vector<Device> devices_for(DeviceKind kind, int count) {
  std::vector<Device> devices = first_devices(kind, count);
  if (kind == DeviceKind::cpu) return devices;
  const int gpus = count_of(kind);
  if (count <= gpus) return devices;
  for (int i = 0; i < count; ++i) {
    // The first of a GPU's run of devices has number 0 there.
    const int gpu = i * gpus / count, first = (gpu * count + gpus - 1) / gpus;
    devices[static_cast<std::size_t>(i)] = {.kind = kind, .index = gpu, .logical = i - first};
  }
  return devices;
}

Device device_of_rank(DeviceKind kind, int rank, int ranks) {
  if (kind == DeviceKind::cpu) return {};
  const int gpus = count_of(kind);
  return {.kind = kind, .index = ranks <= gpus ? rank : rank * gpus / ranks};
}

int physical_devices(DeviceKind kind, int count) {
  return kind == DeviceKind::cpu ? count : std::min(count, count_of(kind));
}

bool can_use_nccl(DeviceKind kind, int ranks) {
  return kind == DeviceKind::cuda && physical_devices(kind, ranks) == ranks && ddp::why_no_nccl().empty();
}

std::string kind_title(DeviceKind kind) {
  const std::string title = duet::name(kind);
  if (kind == DeviceKind::cpu) return title;
  const bool simulated = backend(kind).describe({.kind = kind}).find("simulated") != std::string::npos;
  return simulated ? title + " (simulated)" : title;
}

}  // namespace duet::cli
