// Host memory.
#include <malloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/error.h"

namespace duet::cpu {
namespace {

constexpr std::size_t kAlignment = 64;  // one AVX-512 vector, one cache line
constexpr std::size_t kHugePage = 2 << 20;

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment) / kAlignment * kAlignment; }

/// Blocks that fill most of a huge page lie in such pages where the system gives them: a step walks over more memory
/// than the processor keeps addresses of small pages for.
void* fresh_block(std::size_t size) {
  if (size < kHugePage / 2) return std::aligned_alloc(kAlignment, size);
  const std::size_t whole = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* const block = std::aligned_alloc(kHugePage, whole);
  if (block != nullptr) ::madvise(block, whole, MADV_HUGEPAGE);
  return block;
}

}  // namespace

HostAllocator::~HostAllocator() { free_blocks(); }

void* HostAllocator::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& blocks = free_[size];
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
    // Room for this block to come back without an allocation in release(), which must not throw.
    blocks.reserve(blocks.capacity() + 1);
  }
  void* const fresh = fresh_block(size);
  require<DeviceError>(fresh != nullptr, "out of memory on cpu: asked for ", size, " bytes");
  return fresh;
}

void HostAllocator::release(void* memory, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  free_[rounded(bytes)].push_back(memory);
}

std::size_t HostAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = free_blocks();
  ::malloc_trim(0);  // free() keeps blocks of up to 32 MB that it once took from the system
  return bytes;
}

std::size_t HostAllocator::free_blocks() noexcept {
  std::size_t freed = 0;
  for (auto& [bytes, blocks] : free_) {
    freed += bytes * blocks.size();
    for (void* const block : blocks) std::free(block);
    blocks.clear();  // which leaves the room for those that tensors hold
  }
  return freed;
}

void HostAllocator::clear(void* memory, std::size_t bytes) { std::memset(memory, 0, bytes); }

void HostAllocator::copy(void* destination, Device, const void* source, Device, std::size_t bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, bytes);
}

}  // namespace duet::cpu
