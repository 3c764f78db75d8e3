// Devices and errors: their names, the last one of a thread, and those that tests inject.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Failure {
  std::string function;
  long call, code;
  bool onwards;
};
std::mutex failures_mutex;
std::vector<Failure> failures;
std::map<std::string, long> calls;  // while failures are to be injected
std::map<std::string, std::function<void()>> hooks;
auto& entered = *new std::map<std::string, long>;  // never destroyed: calls come until the very end

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define DUET_SIM_ENTRY(name, value, text) {name, #name, text},
constexpr ErrorText kErrors[] = {DUET_SIM_ERRORS(DUET_SIM_ENTRY)};
#undef DUET_SIM_ENTRY

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& known : kErrors)
    if (known.error == error) return &known;
  return nullptr;
}

bool valid(int device) { return device >= 0 && device < device_count(); }

}  // namespace

long setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value ? std::strtol(value, nullptr, 10) : otherwise;
}

std::chrono::seconds patience() { return std::chrono::seconds(setting("DUET_SIM_TIMEOUT_S", 60)); }

int device_count() {
  static const int count = static_cast<int>(std::min<long>(setting("DUET_SIM_DEVICES", 4), kMaxDevices));
  return count;
}

int current_device() { return device_of_thread; }

bool has_context(int device) {
  std::lock_guard lock(state().mutex);
  return state().contexts >> device & 1;
}

cudaError_t sticky_of(int device) {
  std::lock_guard lock(state().mutex);
  return state().sticky[device];
}

cudaError_t set_last(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void set_failures(const std::string& specification) {
  std::lock_guard lock(failures_mutex);
  failures.clear();
  calls.clear();
  std::istringstream parts(specification);
  for (std::string part; std::getline(parts, part, ',');) {
    char function[64] = "";
    Failure failure{"", 1, 0, std::erase(part, '+') != 0};
    std::sscanf(part.c_str(), "%63[^:]:%ld:%ld", function, &failure.call, &failure.code);
    failure.function = function;
    failures.push_back(failure);
  }
}

int injected(const char* function, int otherwise) {
  static std::once_flag read;
  std::call_once(read, [] {
    if (const char* given = std::getenv("DUET_SIM_FAIL")) set_failures(given);
  });
  std::lock_guard lock(failures_mutex);
  if (failures.empty()) return 0;
  const long call = ++calls[function];
  for (const Failure& failure : failures)
    if (failure.function == function && (call == failure.call || (failure.onwards && call > failure.call)))
      return failure.code != 0 ? static_cast<int>(failure.code) : otherwise;
  return 0;
}

std::map<std::string, long> take_calls() {
  std::lock_guard lock(failures_mutex);
  return std::exchange(entered, {});
}

void before_next(const std::string& function, const std::function<void()>& call) {
  std::lock_guard lock(failures_mutex);
  hooks[function] = call;
}

cudaError_t enter(const char* function) {
  std::unique_lock lock(failures_mutex);
  ++entered[function];
  const auto hook = hooks.extract(function);
  lock.unlock();
  if (hook) hook.mapped()();
  const bool memory = std::strcmp(function, "cudaMalloc") == 0 || std::strcmp(function, "cudaMallocHost") == 0;
  if (const int error = injected(function, memory ? cudaErrorMemoryAllocation : cudaErrorUnknown))
    return set_last(static_cast<cudaError_t>(error));
  return set_last(sticky_of(current_device()));
}

}  // namespace duet_sim

using namespace duet_sim;

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = sticky_of(current_device());
  return error;
}
const char* cudaGetErrorName(cudaError_t error) { return find(error) ? find(error)->name : "cudaErrorOfTheSimulator"; }
const char* cudaGetErrorString(cudaError_t error) { return find(error) ? find(error)->text : "unknown error"; }

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
  state().contexts |= 1u << device;
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
    case cudaDevAttrPciBusId: *value = setting("DUET_SIM_PARTITIONS", 0) != 0 ? 1 : device + 1; break;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId: *value = 0; break;
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
