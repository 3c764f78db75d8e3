// duet info: what there is to compute with, and what the program was built from.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/backend/backend.h"
#include "measure/json_fields.h"

namespace duet::cli {
namespace {

void line(const std::string& name, const std::string& value) { std::printf("%-16s %s\n", name.c_str(), value.c_str()); }

struct Gpu {
  Device device;
  std::string name;  // with compute capability and memory
  double memory_mb = 0, free_mb = 0;
  std::vector<Device> direct;  // GPUs to which copies need no detour through the host
};

/// Makes contexts on all GPUs, because that is how free memory is asked for. Empty without CUDA.
std::vector<Gpu> all_gpus() {
  std::vector<Gpu> gpus;
  if (!why_unavailable(DeviceKind::cuda).empty()) return gpus;
  Backend& cuda = backend(DeviceKind::cuda);
  const std::vector<Device> devices = first_devices(DeviceKind::cuda, cuda.device_count());
  for (const Device device : devices) {
    const DeviceUse use = cuda.use(device);
    Gpu gpu{.device = device,
            .name = cuda.describe(device),
            .memory_mb = static_cast<double>(use.total) / 1e6,
            .free_mb = static_cast<double>(use.free) / 1e6,
            .direct = {}};
    for (const Device other : devices)
      if (other != device && cuda.copies_directly(device, other)) gpu.direct.push_back(other);
    gpus.push_back(gpu);
  }
  return gpus;
}

Json devices_json(const Machine& machine, const std::vector<Gpu>& gpus) {
  auto out = Json::array();
  for (const Device device : first_devices(DeviceKind::cpu, machine.cores))
    out.push_back({{"device", device.str()}, {"name", backend(DeviceKind::cpu).describe(device)}});
  for (const Gpu& gpu : gpus) {
    auto direct = Json::array();
    for (const Device other : gpu.direct) direct.push_back(other.str());
    out.push_back({{"device", gpu.device.str()},
                   {"name", gpu.name},
                   {"memory_mb", gpu.memory_mb},
                   {"free_mb", gpu.free_mb},
                   {"direct_copies_to", direct}});
  }
  return out;
}

/// Which GPUs reach which without a detour through the host, one line each.
void print_peers(const std::vector<Gpu>& gpus) {
  if (gpus.size() < 2) return;
  std::printf("\ncopies between GPUs\n");
  for (const Gpu& gpu : gpus) {
    std::string text;
    for (const Gpu& other : gpus) {
      if (other.device == gpu.device) continue;
      const bool direct = std::find(gpu.direct.begin(), gpu.direct.end(), other.device) != gpu.direct.end();
      text += (text.empty() ? "to " : ", ") + other.device.str() + (direct ? " direct" : " through the host");
    }
    line("  " + gpu.device.str(), text);
  }
}

std::string info_json(const Machine& machine, const std::vector<Gpu>& gpus) {
  Json out = {{"duet", DUET_VERSION},    {"cpu", machine.cpu},   {"cores", machine.cores},
              {"isa", machine.isa},      {"gpus", machine.gpus}, {"memory_gb", machine.memory_gb},
              {"kernel", machine.kernel}};
  out["devices"] = devices_json(machine, gpus);
  out["why_no_cuda"] = why_unavailable(DeviceKind::cuda);
  for (const Library& library : libraries())
    out["libraries"].push_back({{"name", library.name}, {"version", library.version}, {"present", library.present}});
  return text_of(out, 1);
}

}  // namespace

int run(const InfoOptions& options, const std::string&) {
  require_json_output(options.json);
  const Machine machine = this_machine();
  const std::vector<Gpu> gpus = all_gpus();
  write_json(options.json, info_json(machine, gpus));
  if (to_stdout(options.json)) return 0;  // text would say the same
  std::printf("duet %s (%s)\n\n", DUET_VERSION, DUET_BUILD);
  line("cpu", machine.cpu);
  line("cores", std::to_string(machine.cores) + " usable by this process");
  line("instructions", machine.isa);
  line("memory", fixed(machine.memory_gb, 1) + " GB");
  line("kernel", machine.kernel);
  std::string devices;
  for (const Device device : first_devices(DeviceKind::cpu, machine.cores))
    devices += (devices.empty() ? "" : " ") + device.str();
  line("devices", devices + " (" + backend(DeviceKind::cpu).describe({}) + " each; more may be asked for)");
  if (const std::string why = why_unavailable(DeviceKind::cuda); !why.empty()) line("", "no GPU: " + why);
  for (const Gpu& gpu : gpus)
    line("",
         concat(gpu.device, " (", gpu.name, ", ", fixed(gpu.free_mb, 0), " of ", fixed(gpu.memory_mb, 0), " MB free)"));
  print_peers(gpus);
  std::printf("\nlibraries\n");
  for (const Library& library : libraries())
    line("  " + library.name, (library.present ? "" : "absent: ") + library.version);
  return 0;
}

}  // namespace duet::cli
