#include "ddp/bucket.h"

#include <algorithm>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {
namespace {

/// The bucket being filled of one dtype and device.
struct Open {
  DType dtype;
  Device device;
  std::size_t bytes = 0;
  std::size_t next_limit = 0;
  std::vector<std::size_t> items{};
};

Open& open_bucket(std::vector<Open>& list, const BucketItem& item) {
  for (Open& open : list) {
    if (open.dtype == item.dtype && open.device == item.device) return open;
  }
  list.push_back({item.dtype, item.device});
  return list.back();
}

void check_order(std::span<const std::size_t> order, std::size_t count) {
  std::vector<std::size_t> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  bool permutation = sorted.size() == count;
  for (std::size_t i = 0; permutation && i < count; ++i) permutation = sorted[i] == i;
  require<UsageError>(permutation, "the order of bucket items is no permutation of ", count, " items");
}

}  // namespace

std::vector<Bucket> compute_bucket_assignment_by_size(std::span<const BucketItem> items,
                                                      std::span<const std::size_t> limits,
                                                      std::span<const std::size_t> order) {
  require<UsageError>(!limits.empty(), "buckets need at least one size limit");
  if (!order.empty()) check_order(order, items.size());
  std::vector<Open> list;
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t item = order.empty() ? i : order[i];
    Open& open = open_bucket(list, items[item]);
    open.items.push_back(item);
    open.bytes += items[item].bytes;
    const std::size_t limit = limits[open.next_limit];
    if (open.bytes < limit) continue;
    buckets.push_back({std::move(open.items), limit});
    open.items.clear();
    open.bytes = 0;
    open.next_limit = std::min(open.next_limit + 1, limits.size() - 1);
  }
  for (Open& open : list) {
    if (!open.items.empty()) buckets.push_back({std::move(open.items), limits[open.next_limit]});
  }
  if (order.empty()) {
    std::sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) {
      return *std::min_element(a.items.begin(), a.items.end()) < *std::min_element(b.items.begin(), b.items.end());
    });
  }
  return buckets;
}

}  // namespace duet::ddp
