#include "train/system/machine.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include "ddp/transport/modules.h"
#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/environment.h"
#include "lib/base/threads.h"
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
  const std::string kernels = backend(DeviceKind::cpu).describe({});  // "AVX-512, 1 thread"
  machine.isa = kernels.substr(0, kernels.find(','));
  const std::string memory = proc_value("/proc/meminfo", "MemTotal");  // "16318480 kB"
  machine.memory_gb = parse_number<double>(memory.substr(0, memory.find(' '))).value_or(0) * 1024 / 1e9;
  utsname kernel{};
  if (uname(&kernel) == 0) machine.kernel = std::string(kernel.sysname) + " " + kernel.release;
  add_topology(machine, "/sys/devices/system/cpu");
  if (!why_unavailable(DeviceKind::cuda).empty()) return machine;
  Backend& cuda = backend(DeviceKind::cuda);
  for (int i = 0; i < cuda.device_count(); ++i) machine.gpus.push_back(cuda.describe({DeviceKind::cuda, i}));
  return machine;
}

void add_topology(Machine& machine, const std::string& folder) {
  std::set<std::string> sockets;
  std::map<std::string, std::set<std::string>> caches;  // by kind and size, each with the processors that share it
  std::error_code none;
  for (const auto& processor : std::filesystem::directory_iterator(folder, none)) {
    const std::string socket = first_line(processor.path() / "topology/physical_package_id");
    if (!socket.empty()) sockets.insert(socket);
    for (const auto& cache : std::filesystem::directory_iterator(processor.path() / "cache", none)) {
      const std::string level = first_line(cache.path() / "level"), size = first_line(cache.path() / "size");
      const std::string type = first_line(cache.path() / "type");
      if (level.empty() || size.empty()) continue;
      const char* const of = type == "Data" ? "d" : type == "Instruction" ? "i" : "";
      caches[concat("L", level, of, " ", size)].insert(first_line(cache.path() / "shared_cpu_list"));
    }
  }
  machine.sockets = static_cast<int>(sockets.size());
  machine.caches.clear();
  for (const auto& [kind, sharers] : caches)
    machine.caches.push_back(kind + (sharers.size() > 1 ? concat(" x ", sharers.size()) : ""));
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

std::string backend_for(DeviceKind kind, int ranks, const std::string& asked) {
  const bool picks = asked == "auto" && kind == DeviceKind::cuda && physical_devices(kind, ranks) == ranks;
  return picks && ddp::why_no_nccl().empty() ? "nccl" : asked;
}

std::string kind_title(DeviceKind kind) {
  const std::string title = duet::name(kind);
  if (kind == DeviceKind::cpu) return title;
  const bool simulated = backend(kind).describe({.kind = kind}).find("simulated") != std::string::npos;
  return simulated ? title + " (simulated)" : title;
}

std::vector<Library> libraries() {
  std::vector<Library> list;
  /// Adds "NAME VERSION", or an item that was not built in: "NAME -".
  const auto add = [&](const std::string& item) {
    const std::size_t name = std::min(item.find(' '), item.size());
    const std::string version = item.substr(std::min(name + 1, item.size()));
    list.push_back({item.substr(0, name), version == "-" ? "not built in" : version, version != "-"});
  };
  add(backend(DeviceKind::cpu).libraries());
  std::istringstream built(DUET_BUILT_WITH);  // "zlib 1.2.13;libcurl 7.88.1;...", by Meson
  for (std::string item; std::getline(built, item, ';');) add(item);
  const std::string torch = DUET_TORCH_VERSION;
  list.push_back({"LibTorch", torch.empty() ? DUET_WHY_NO_TORCH : torch, !torch.empty()});
  if (const std::string why = why_unavailable(DeviceKind::cuda); !why.empty()) {
    list.push_back({"CUDA", why, false});
    return list;
  }
  std::string cuda = backend(DeviceKind::cuda).libraries();  // "CUDA 13.0 (driver 13.0), cuDNN 9.19.0, cuBLAS 13.1"
  for (std::size_t end = 0; !cuda.empty(); cuda.erase(0, end + 2)) {
    end = std::min(cuda.find(", "), cuda.size());
    add(cuda.substr(0, end));
  }
  return list;
}

void require_available(DeviceKind kind) {
  const std::string why = why_unavailable(kind);
  require<DeviceError>(why.empty(), "--device ", duet::name(kind), ": ", why);
}

double peak_memory_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

CpuUse cpu_use() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  CpuUse use{.used_s = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9};
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    double ran_ns = 0, delayed_ns = 0;  // Documentation/scheduler/sched-stats.rst
    std::ifstream(thread.path() / "schedstat") >> ran_ns >> delayed_ns;
    use.delayed_s += delayed_ns / 1e9;
  }
  return use;
}

}  // namespace duet::cli
