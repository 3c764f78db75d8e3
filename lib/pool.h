// Recycled memory for small objects (nodes of the tape, variables), so that a training step allocates nothing once
// every size has been seen.
#pragma once

#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

namespace duet {

/// Thread-safe; lives until the process ends.
std::pmr::memory_resource& object_pool();

/// std::make_shared, out of the object pool.
template <class T, class... Args>
std::shared_ptr<T> make_pooled(Args&&... args) {
  return std::allocate_shared<T>(std::pmr::polymorphic_allocator<T>(&object_pool()), std::forward<Args>(args)...);
}

/// A std::vector whose elements come from the object pool.
template <class T>
struct PooledVector : std::pmr::vector<T> {
  PooledVector() : std::pmr::vector<T>(&object_pool()) {}
  explicit PooledVector(std::size_t n) : std::pmr::vector<T>(n, &object_pool()) {}
  PooledVector(std::initializer_list<T> items) : std::pmr::vector<T>(items, &object_pool()) {}
};

}  // namespace duet
