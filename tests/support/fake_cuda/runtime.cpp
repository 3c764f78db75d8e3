#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

thread_local int device_of_thread = 0;
const char* text(const char* name) { return std::getenv(name); }

bool valid(int device) { return device >= 0 && device < device_count(); }
void touch(int device) { state().contexts |= 1u << device; }

}  // namespace

long setting(const char* name, long otherwise) {
  const char* value = text(name);
  return value != nullptr && *value ? std::strtol(value, nullptr, 10) : otherwise;
}

std::chrono::seconds patience() { return std::chrono::seconds(setting("DUET_SIM_TIMEOUT_S", 20)); }

int device_count() {
  static const int count = static_cast<int>(std::min<long>(setting("DUET_SIM_DEVICES", 4), kMaxDevices));
  return count;
}

int current_device() { return device_of_thread; }

bool has_context(int device) {
  std::lock_guard lock(state().mutex);
  return state().contexts >> device & 1;
}

}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (const int error = injected("cudaGetDeviceCount", cudaErrorNoDevice))
    return set_last(static_cast<cudaError_t>(error));
  *count = device_count();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (const int error = injected("cudaSetDevice", cudaErrorDevicesUnavailable))
    return set_last(static_cast<cudaError_t>(error));
  if (!valid(device)) return set_last(cudaErrorInvalidDevice);
  device_of_thread = device;
  std::lock_guard lock(state().mutex);
  touch(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (!valid(device)) return set_last(cudaErrorInvalidDevice);
  *prop = {};
  std::snprintf(prop->name, sizeof prop->name, "simulated GPU");
  prop->uuid.bytes[15] = static_cast<char>(device + 1);
  prop->totalGlobalMem = static_cast<size_t>(setting("DUET_SIM_MEMORY", 4096)) << 20;
  prop->major = 9;
  prop->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  if (!valid(device)) return set_last(cudaErrorInvalidDevice);
  switch (attr) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrPciBusId: *value = setting("DUET_SIM_PARTITIONS", 0) != 0 ? 1 : device + 1; break;
    case cudaDevAttrComputeMode:
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(setting("DUET_SIM_DRIVER", CUDART_VERSION));
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!valid(device) || !valid(peer)) return set_last(cudaErrorInvalidDevice);
  *can = device != peer && setting("DUET_SIM_PEER", 1) != 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (cudaError_t error = enter("cudaDeviceEnablePeerAccess")) return error;
  if (!valid(peer) || peer == current_device()) return set_last(cudaErrorInvalidDevice);
  if (setting("DUET_SIM_PEER", 1) == 0) return set_last(cudaErrorPeerAccessUnsupported);
  const std::uint32_t bit = 1u << peer;
  return set_last(state().peers[current_device()].fetch_or(bit) & bit ? cudaErrorPeerAccessAlreadyEnabled
                                                                      : cudaSuccess);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

}  // extern "C"
