// duet info: what there is to compute with, and what the program was built from.
#include "cli/info.h"

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "train/measure/json_fields.h"
#include "train/options/options.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

void line(const std::string& name, const std::string& value) { std::printf("%-16s %s\n", name.c_str(), value.c_str()); }

/// Empty without CUDA.
std::vector<Device> all_gpus() {
  if (!why_unavailable(DeviceKind::cuda).empty()) return {};
  return first_devices(DeviceKind::cuda, backend(DeviceKind::cuda).device_count());
}

double megabytes(std::size_t bytes) { return static_cast<double>(bytes) / 1e6; }

Json devices_json(const Machine& machine, const std::vector<Device>& gpus) {
  auto out = Json::array();
  for (const Device device : first_devices(DeviceKind::cpu, machine.cores))
    out.push_back({{"device", device.str()}, {"name", backend(DeviceKind::cpu).describe(device)}});
  for (const Device gpu : gpus) {
    Backend& cuda = backend(DeviceKind::cuda);
    auto direct = Json::array();
    for (const Device other : gpus)
      if (other != gpu && cuda.copies_directly(gpu, other)) direct.push_back(other.str());
    const DeviceUse use = cuda.use(gpu);
    out.push_back({{"device", gpu.str()},
                   {"name", cuda.describe(gpu)},
                   {"memory_mb", megabytes(use.total)},
                   {"free_mb", megabytes(use.free)},
                   {"direct_copies_to", direct}});
  }
  return out;
}

void print_gpu(Device gpu) {
  const DeviceUse use = backend(gpu.kind).use(gpu);
  line("", concat(gpu, " (", backend(gpu.kind).describe(gpu), ", ", fixed(megabytes(use.free), 0), " of ",
                  fixed(megabytes(use.total), 0), " MB free)"));
}

/// Which GPUs reach which without a detour through the host, one line each.
void print_peers(const std::vector<Device>& gpus) {
  if (gpus.size() < 2) return;
  std::printf("\ncopies between GPUs\n");
  for (const Device gpu : gpus) {
    std::string text;
    for (const Device other : gpus) {
      if (other == gpu) continue;
      const bool direct = backend(gpu.kind).copies_directly(gpu, other);
      text += (text.empty() ? "to " : ", ") + other.str() + (direct ? " direct" : " through the host");
    }
    line("  " + gpu.str(), text);
  }
}

}  // namespace

std::string info_json(const Machine& machine) {
  Json out = {{"duet", DUET_VERSION},    {"cpu", machine.cpu},   {"cores", machine.cores},
              {"isa", machine.isa},      {"gpus", machine.gpus}, {"memory_gb", machine.memory_gb},
              {"kernel", machine.kernel}};
  out["sockets"] = machine.sockets;
  out["caches"] = machine.caches;
  out["build"] = DUET_BUILD;
  out["devices"] = devices_json(machine, all_gpus());
  out["why_no_cuda"] = why_unavailable(DeviceKind::cuda);
  for (const Library& library : libraries())
    out["libraries"].push_back({{"name", library.name}, {"version", library.version}, {"present", library.present}});
  return text_of(out);
}

int run(const InfoOptions& options, const std::string&) {
  require_json_output(options.json);
  const Machine machine = this_machine();
  write_json(options.json, info_json(machine));
  if (to_stdout(options.json)) return 0;  // text would say the same
  std::printf("duet %s (%s)\n\n", DUET_VERSION, DUET_BUILD);
  line("cpu", machine.cpu);
  line("cores", std::to_string(machine.cores) + " usable by this process");
  line("instructions", machine.isa);
  if (machine.sockets > 0) line("sockets", std::to_string(machine.sockets));
  if (!machine.caches.empty()) line("caches", listed(machine.caches));
  line("memory", fixed(machine.memory_gb, 1) + " GB");
  line("kernel", machine.kernel);
  std::string devices;
  for (const Device device : first_devices(DeviceKind::cpu, machine.cores))
    devices += (devices.empty() ? "" : " ") + device.str();
  line("devices", devices + " (" + backend(DeviceKind::cpu).describe({}) + " each; more may be asked for)");
  if (const std::string why = why_unavailable(DeviceKind::cuda); !why.empty()) line("", "no GPU: " + why);
  const std::vector<Device> gpus = all_gpus();
  for (const Device gpu : gpus) print_gpu(gpu);
  print_peers(gpus);
  std::printf("\nlibraries\n");
  for (const Library& library : libraries())
    line("  " + library.name, (library.present ? "" : "absent: ") + library.version);
  return 0;
}

}  // namespace duet::cli
