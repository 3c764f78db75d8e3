// Host memory, kept by size for the next tensor of that size.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "lib/allocator.h"

namespace duet::cpu {

/// Shared by all CPU devices: they share memory. A training step asks for the same sizes again and again, so after two
/// steps every request is met from what came back.
class HostAllocator final : public Allocator {
 public:
  ~HostAllocator() override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  void clear(void* memory, std::size_t bytes) override;
  void copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) override;

 private:
  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;  // by rounded size
};

}  // namespace duet::cpu
