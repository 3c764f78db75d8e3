// Which gradients travel together: PyTorch's rule as a pure function
// (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lib/device.h"
#include "lib/tensor.h"

namespace duet::ddp {

struct BucketItem {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  Device device{};
};

struct Bucket {
  std::vector<std::size_t> items;
  std::size_t limit_bytes = 0;  // the limit that it was closed by, or would have been
};

/// PyTorch's limits where the user sets none: a small first bucket, so that communication starts early.
inline constexpr std::size_t kBucketLimits[] = {std::size_t{1} << 20, std::size_t{25} << 20};

/// Adds items to the open bucket of their dtype and device and closes it once it holds at least the limit; each dtype
/// and device goes through `limits` on its own, and the last limit repeats. With an `order` (a permutation, such as
/// that of the gradients' arrival) items are taken in it and buckets stay in the order in which they closed; without
/// one, buckets are sorted by their lowest item. Throws UsageError without limits or for an order that is no
/// permutation.
std::vector<Bucket> compute_bucket_assignment_by_size(std::span<const BucketItem> items,
                                                      std::span<const std::size_t> limits,
                                                      std::span<const std::size_t> order = {});

}  // namespace duet::ddp
