#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/system/files.h"
#include "train/system/machine.h"

using namespace duet;
using namespace duet::cli;

namespace {

std::string names(const std::vector<Device>& devices) {
  std::string text;
  for (const Device device : devices) text += (text.empty() ? "" : " ") + device.str();
  return text;
}

}  // namespace

TEST_CASE("CPU devices are real, however many") {
  CHECK(names(devices_for(DeviceKind::cpu, 3)) == "cpu:0 cpu:1 cpu:2");
  CHECK(physical_devices(DeviceKind::cpu, 3) == 3);
  CHECK(device_of_rank(DeviceKind::cpu, 2, 3) == Device{});
  CHECK(kind_title(DeviceKind::cpu) == "cpu");
  CHECK(is_available(DeviceKind::cpu));
  CHECK(device_count(DeviceKind::cpu) == usable_cores());
}

TEST_CASE("GPUs are counted, 0 where none can be used") {
  const bool gpus = why_unavailable(DeviceKind::cuda).empty();
  CHECK(is_available(DeviceKind::cuda) == gpus);
  CHECK(device_count(DeviceKind::cuda) == (gpus ? backend(DeviceKind::cuda).device_count() : 0));
}

TEST_CASE("sockets and caches are counted by what shares them") {
  const TemporaryFolder folder;
  const auto add = [&](int processor, const std::string& file, const std::string& text) {
    const std::filesystem::path path = concat(folder.path(), "/cpu", processor, "/", file);
    std::filesystem::create_directories(path.parent_path());
    write_output(path.string(), text + "\n");
  };
  for (const int processor : {0, 1, 2, 3}) {
    add(processor, "topology/physical_package_id", processor < 2 ? "0" : "1");
    const auto add_cache = [&](const std::string& index, const std::string& level, const std::string& type,
                               const std::string& size, const std::string& sharers) {
      const std::vector<std::pair<std::string, std::string>> files = {
          {"level", level}, {"type", type}, {"size", size}, {"shared_cpu_list", sharers}};
      for (const auto& [file, text] : files) add(processor, concat("cache/", index, "/", file), text);
    };
    add_cache("index0", "1", "Data", "48K", std::to_string(processor));
    add_cache("index1", "1", "Instruction", "32K", std::to_string(processor));
    add_cache("index3", "3", "Unified", "32768K", processor < 2 ? "0-1" : "2-3");
  }
  add(0, "cache/index9/level", "4");  // without a size
  Machine machine;
  add_topology(machine, folder.path());
  CHECK(machine.sockets == 2);
  CHECK(machine.caches == std::vector<std::string>{"L1d 48K x 4", "L1i 32K x 4", "L3 32768K x 2"});
  add_topology(machine, folder.path() + "/nowhere");
  CHECK(machine.sockets == 0);
  CHECK(machine.caches.empty());
}

TEST_CASE("runs on shared GPUs are spelled so, and have neither speed-up nor efficiency") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs) run.device = "cuda (simulated)";
  results.runs[4].physical_devices = 2;
  compare_with_single(results);
  CHECK(sharing(results.runs[3]) == "2 logical devices on 1 GPU");
  CHECK(sharing(results.runs[5]) == "4 ranks on 1 GPU");
  CHECK(sharing(results.runs[4]).empty());
  CHECK_FALSE(results.runs[3].speedup);
  CHECK_FALSE(results.runs[3].efficiency);
  CHECK(results.runs[4].efficiency);
}

TEST_CASE("more devices than GPUs are logical ones that share them evenly", "[gpu]") {
  if (const std::string why = why_unavailable(DeviceKind::cuda); !why.empty()) DUET_SKIP(why.c_str());
  const int gpus = backend(DeviceKind::cuda).device_count();
  CHECK(device_count(DeviceKind::cuda) == gpus);
  CHECK(names(devices_for(DeviceKind::cuda, 1)) == "cuda:0");
  CHECK(physical_devices(DeviceKind::cuda, gpus + 1) == gpus);
  CHECK(device_of_rank(DeviceKind::cuda, gpus, gpus + 1).index == gpus - 1);
  if (gpus == 1) CHECK(names(devices_for(DeviceKind::cuda, 3)) == "cuda:0.0 cuda:0.1 cuda:0.2");
  if (gpus == 4)
    CHECK(names(devices_for(DeviceKind::cuda, 6)) == "cuda:0.0 cuda:0.1 cuda:1.0 cuda:2.0 cuda:2.1 cuda:3.0");
}

TEST_CASE("without --devices as many are compared as have cores and rows of their own") {
  const auto up_to = [](std::int64_t most) {
    std::vector<int> devices = {1};
    for (const int more : {2, 4, 8})
      if (more <= most) devices.push_back(more);
    return devices;
  };
  const int cores = usable_cores();
  CHECK(std::get<CompareOptions>(parse({"compare"})).devices == up_to(cores));
  CHECK(std::get<CompareOptions>(parse({"compare", "--threads-per-device", "2"})).devices == up_to(cores / 2));
  CHECK(std::get<CompareOptions>(parse({"compare", "--batch", "1"})).devices == up_to(1));
  CHECK(std::get<CompareOptions>(parse({"compare", "--batch", "1", "--scaling", "weak"})).devices == up_to(cores));
  CHECK(std::get<CompareOptions>(parse({"compare", "--batch", "3"})).devices == up_to(std::min(cores, 3)));
}
