// Recycled memory for small objects (nodes of the tape, variables), so that a training step allocates nothing once
// every size has been seen.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

namespace duet {

/// Thread-safe; lives until the process ends.
std::pmr::memory_resource& object_pool();

/// Allocates from the object pool.
template <class T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}  // NOLINT(google-explicit-constructor): required of allocators
  T* allocate(std::size_t n) { return static_cast<T*>(object_pool().allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* memory, std::size_t n) { object_pool().deallocate(memory, n * sizeof(T), alignof(T)); }
  bool operator==(const PoolAllocator&) const { return true; }
};

/// std::make_shared, out of the object pool.
template <class T, class... Args>
std::shared_ptr<T> make_pooled(Args&&... args) {
  return std::allocate_shared<T>(PoolAllocator<T>(), std::forward<Args>(args)...);
}

/// A std::vector whose elements come from the object pool.
template <class T>
using PooledVector = std::vector<T, PoolAllocator<T>>;

}  // namespace duet
