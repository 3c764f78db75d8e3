// Takes the place of the library's allocator in fuzz targets: no block is kept for the next tensor, so that the address
// sanitizer watches them all.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "lib/backend/backend.h"
#include "lib/error.h"

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

}  // namespace duet
