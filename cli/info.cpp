// duet info: what there is to compute with, and what the program was built from.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/text.h"
#include "lib/backend/backend.h"

namespace duet::cli {
namespace {

int info_json(const Machine& machine) {
  nlohmann::ordered_json out = {{"duet", DUET_VERSION},    {"cpu", machine.cpu},   {"cores", machine.cores},
                                {"isa", machine.isa},      {"gpus", machine.gpus}, {"memory_gb", machine.memory_gb},
                                {"kernel", machine.kernel}};
  for (const Library& library : libraries())
    out["libraries"].push_back({{"name", library.name}, {"version", library.version}, {"present", library.present}});
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

void line(const std::string& name, const std::string& value) { std::printf("%-16s %s\n", name.c_str(), value.c_str()); }

}  // namespace

int info(const InfoOptions& options) {
  const Machine machine = this_machine();
  if (options.json) return info_json(machine);
  std::printf("duet %s (%s)\n\n", DUET_VERSION, DUET_BUILD);
  line("cpu", machine.cpu);
  line("cores", std::to_string(machine.cores) + " usable by this process");
  line("instructions", machine.isa);
  line("memory", fixed(machine.memory_gb, 1) + " GB");
  line("kernel", machine.kernel);
  std::string devices;
  for (int i = 0; i < machine.cores; ++i) devices += (i ? " " : "") + Device{DeviceKind::cpu, i}.str();
  line("devices", devices + " (" + backend(DeviceKind::cpu).describe({}) + " each; more may be asked for)");
  std::string why;
  if (kind_available(DeviceKind::cuda, why)) {
    for (std::size_t i = 0; i < machine.gpus.size(); ++i)
      line("", Device{DeviceKind::cuda, static_cast<int>(i)}.str() + " " + machine.gpus[i]);
  } else {
    line("", "no GPU: " + why);
  }
  std::printf("\nlibraries\n");
  for (const Library& library : libraries())
    line("  " + library.name, (library.present ? "" : "absent: ") + library.version);
  return 0;
}

}  // namespace duet::cli
