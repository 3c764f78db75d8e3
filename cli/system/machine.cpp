#include "cli/system/machine.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <CLI/Version.hpp>
#include <algorithm>
#include <boost/version.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/system/number_text.h"
#include "ddp/nccl/load.h"
#include "lib/backend/backend.h"
#include "lib/backend/cuda_module.h"
#include "lib/base/thread_pool.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

/// The value of the first line "key : value" of a file in /proc.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    const auto begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string isa() {
  const std::string text = backend(DeviceKind::cpu).describe({});
  return text.substr(0, text.find(','));
}

int count_of(DeviceKind kind) {
  const int count = backend(kind).device_count();
  require<DeviceError>(count > 0, "there is no device of kind ", duet::name(kind));
  return count;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = proc_value("/proc/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown CPU";
  machine.cores = usable_cores();
  machine.isa = isa();
  const std::string memory = proc_value("/proc/meminfo", "MemTotal");  // "16318480 kB"
  machine.memory_gb = parse_number<double>(memory.substr(0, memory.find(' '))).value_or(0) * 1024 / 1e9;
  utsname kernel{};
  if (uname(&kernel) == 0) machine.kernel = std::string(kernel.sysname) + " " + kernel.release;
  std::string why;
  if (kind_available(DeviceKind::cuda, why)) {
    Backend& cuda = backend(DeviceKind::cuda);
    for (int i = 0; i < cuda.device_count(); ++i) machine.gpus.push_back(cuda.describe({DeviceKind::cuda, i}));
  }
  return machine;
}

std::vector<Gpu> all_gpus() {
  std::vector<Gpu> gpus;
  std::string why;
  if (!kind_available(DeviceKind::cuda, why)) return gpus;
  Backend& cuda = backend(DeviceKind::cuda);
  for (const Device device : first_devices(DeviceKind::cuda, cuda.device_count())) {
    const DeviceUse use = cuda.use(device);
    Gpu gpu{.device = device,
            .name = cuda.describe(device),
            .memory_mb = static_cast<double>(use.total) / 1e6,
            .free_mb = static_cast<double>(use.free) / 1e6,
            .direct = {}};
    for (const Device other : first_devices(DeviceKind::cuda, cuda.device_count()))
      if (other != device && cuda.copies_directly(device, other)) gpu.direct.push_back(other);
    gpus.push_back(gpu);
  }
  return gpus;
}

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

std::vector<Library> libraries() {
  std::vector<Library> list;
  const std::string kernels = backend(DeviceKind::cpu).libraries();
  const auto space = kernels.find(' ');
  list.push_back({kernels.substr(0, space), space == std::string::npos ? "" : kernels.substr(space + 1)});
  std::istringstream built(DUET_BUILT_WITH);  // "zlib 1.2.13;libcurl -;...": from Meson, "-" where it was not found
  for (std::string item; std::getline(built, item, ';');) {
    const auto gap = item.find(' ');
    const std::string version = item.substr(gap + 1);
    list.push_back({item.substr(0, gap), version == "-" ? "not built in" : version, version != "-"});
  }
  std::string boost = BOOST_LIB_VERSION;
  for (char& c : boost)
    if (c == '_') c = '.';
  list.push_back({"Boost", boost});
  list.push_back({"CLI11", CLI11_VERSION});
  list.push_back({"nlohmann_json", concat(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".",
                                          NLOHMANN_JSON_VERSION_PATCH)});
  std::string why;
  if (!kind_available(DeviceKind::cuda, why)) {
    list.push_back({"CUDA", why, false});
    return list;
  }
  std::string cuda = backend(DeviceKind::cuda).libraries();  // "CUDA 13.0 (driver 13.0), cuDNN 9.19.0, cuBLAS 13.1"
  for (std::size_t end = 0; !cuda.empty(); cuda.erase(0, end)) {
    end = std::min(cuda.find(", "), cuda.size());
    const std::string item = cuda.substr(0, end);
    list.push_back({item.substr(0, item.find(' ')), item.substr(item.find(' ') + 1)});
    end = std::min(end + 2, cuda.size());
  }
  return list;
}

std::string libraries_line() {
  std::string out;
  for (const Library& library : libraries())
    if (library.present) out += (out.empty() ? "" : " · ") + library.name + " " + library.version;
  return out;
}

bool kind_available(DeviceKind kind, std::string& why) {
  if (kind == DeviceKind::cuda && !why_no_cuda().empty()) {
    why = why_no_cuda();
    return false;
  }
  try {
    if (backend(kind).device_count() > 0) return true;
    why = "no device found";
  } catch (const Error& error) {
    why = error.what();
  }
  return false;
}

double peak_memory_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

}  // namespace duet::cli
