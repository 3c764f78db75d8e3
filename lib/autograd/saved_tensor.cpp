#include "lib/autograd/saved_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet {

SavedTensor::SavedTensor(const Tensor& tensor, const char* what) : Tensor(tensor), what_(what) {
  if (!defined()) return;
  version_ = version();
  hash_ = hash_of_some();
}

SavedTensor::SavedTensor(const Variable& x, const char* what) : SavedTensor(x.defined() ? x.value() : Tensor(), what) {
  if (x.requires_grad()) from_ = x.edge().node.get();
}

void SavedTensor::require_unmodified(const char* op) const {
  if (!defined()) return;
  const bool same = version() == version_ && hash_of_some() == hash_;
  if (!same && !Recovery::instance().is_void()) [[unlikely]]  // a void step has values of its begin again
    refuse(op);
}

void SavedTensor::refuse(const char* op) const {
  const auto* const leaf = dynamic_cast<const Leaf*>(from_);
  const std::string name = leaf != nullptr ? concat(" (", leaf->name(), ")") : "";
  const std::string how = version() != version_
                              ? concat("it is at version ", version(), ", expected version ", version_)
                              : "elements of it have changed";
  throw UsageError(
      concat("backward of ", op, ": its ", what_, " ", dtype(), shape(), name,
             " was modified after the forward of this backward: ", how,
             "; call backward() before opt.step(), and before anything else that writes parameters, inputs or labels"));
}

/// 0 of what the host cannot read without waiting for its device.
std::uint64_t SavedTensor::hash_of_some() const {
  constexpr std::size_t kMost = 16;
  if (device().kind != DeviceKind::cpu || count() == 0) return 0;
  const std::size_t all = static_cast<std::size_t>(count()), some = std::min(all, kMost), size = size_of(dtype());
  const auto* const first = static_cast<const std::byte*>(raw());
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < some; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, first + (all <= kMost ? i : i * (all - 1) / (kMost - 1)) * size, size);
    hash = mixed(hash, bits);
  }
  return hash;
}

}  // namespace duet
