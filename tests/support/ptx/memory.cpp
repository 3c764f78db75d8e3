#include "tests/support/ptx/memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace duet_ptx {

void Memory::add(const void* at, std::size_t bytes, unsigned granule_bytes, const std::string& name, bool initialised) {
  if (bytes == 0) return;
  auto array = std::make_unique<Array>();
  array->begin = reinterpret_cast<std::uintptr_t>(at);
  array->end = array->begin + bytes;
  array->granule_bytes = granule_bytes;
  array->name = name;
  array->initialised.assign(bytes, initialised ? 1 : 0);
  array->granules.resize((bytes + granule_bytes - 1) / granule_bytes);
  arrays_[array->end] = std::move(array);
}

void Memory::remove(const void* at) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const auto found = arrays_.upper_bound(begin);
  if (found == arrays_.end() || found->second->begin != begin) return;
  if (last_ == found->second.get()) last_ = nullptr;
  arrays_.erase(found);
}

void Memory::mark(const void* at, std::size_t bytes, bool initialised) {
  Array* const array = bytes == 0 ? nullptr : find(reinterpret_cast<std::uintptr_t>(at));
  if (array == nullptr) return;
  const auto first = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(at) - array->begin);
  std::fill_n(array->initialised.begin() + first, bytes, initialised ? 1 : 0);
}

Memory::Array* Memory::find(std::uintptr_t address) {
  if (last_ != nullptr && address >= last_->begin && address < last_->end) return last_;
  const auto found = arrays_.upper_bound(address);
  if (found == arrays_.end() || address < found->second->begin) return nullptr;
  return last_ = found->second.get();
}

}  // namespace duet_ptx
