// What the fuzzed code calls of the backends, in place of the CPU's kernels, which would take most of the build: memory
// that the address sanitizer watches, as no block is kept for the next tensor; no arithmetic; no GPU.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cli/system/machine.h"
#include "ddp/transport/modules.h"
#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/tensor.h"

namespace duet {
namespace {

class PlainMemory final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    require<DeviceError>(::posix_memalign(&memory, 64, bytes) == 0, "out of memory: asked for ", bytes, " bytes");
    return memory;
  }
  void release(void* memory, std::size_t) noexcept override { std::free(memory); }
  std::size_t empty_cache() override { return 0; }
  void clear(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void copy(void* destination, Device, const void* source, Device, std::size_t bytes) override {
    if (bytes > 0 && destination != source) std::memcpy(destination, source, bytes);
  }
};

}  // namespace

Allocator& allocator(Device) {
  static PlainMemory memory;
  return memory;
}

Backend& backend(DeviceKind) { throw DeviceError("fuzz targets compute nothing"); }

const char* name(Precision precision) {
  return precision == Precision::fp32 ? "fp32" : precision == Precision::tf32 ? "tf32" : "bf16";
}

Precision parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16})
    if (text == name(precision)) return precision;
  throw UsageError(concat("unknown precision '", text, "'"));
}

const std::vector<nn::NamedNetwork>& nn::named_networks() {
  static const std::vector<NamedNetwork> all = {{"simple_cnn", 1, 28, 10, true, {}},
                                                {"resnet18", 3, 224, 1000, false, {}}};
  return all;
}

const nn::NamedNetwork& nn::find_network(const std::string& name) {
  for (const NamedNetwork& network : named_networks())
    if (network.name == name) return network;
  throw UsageError(concat("unknown network '", name, "'"));
}

std::string why_unavailable(DeviceKind) { return "fuzz targets compute nothing"; }
std::string ddp::why_no_nccl() { return "fuzz targets have no GPU"; }

}  // namespace duet
