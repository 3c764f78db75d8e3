#include "ddp/reducer.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/backend/step_graph.h"
#include "lib/base/fault_point.h"
#include "lib/base/trace.h"
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

}  // namespace

std::vector<std::vector<std::size_t>> compute_bucket_assignment_by_size(std::span<const BucketItem> items,
                                                                        std::span<const std::size_t> limits) {
  require<UsageError>(!limits.empty(), "buckets need at least one size limit");
  std::vector<Open> list;
  std::vector<std::vector<std::size_t>> buckets;
  for (std::size_t item = 0; item < items.size(); ++item) {
    Open& open = open_bucket(list, items[item]);
    open.items.push_back(item);
    open.bytes += items[item].bytes;
    if (open.bytes < limits[open.next_limit]) continue;
    buckets.push_back(std::move(open.items));
    open.items.clear();
    open.bytes = 0;
    open.next_limit = std::min(open.next_limit + 1, limits.size() - 1);
  }
  for (Open& open : list) {
    if (!open.items.empty()) buckets.push_back(std::move(open.items));
  }
  std::sort(buckets.begin(), buckets.end());
  return buckets;
}

namespace {

constexpr const char* kGraphsThatChange =
    "; a graph that changes needs find_unused_parameters in place of static_graph";

std::byte* begin_of(const ReducerSlot& slot) { return static_cast<std::byte*>(slot.data); }
std::byte* end_of(const ReducerSlot& slot) {
  return begin_of(slot) + static_cast<std::size_t>(slot.count) * size_of(slot.dtype);
}

void set_to_zero(const Buffer& buffer) {
  const Tensor tensor = tensor_of(buffer);
  copy(zeros(tensor.shape(), tensor.dtype(), tensor.device()), tensor);
}

void scale(const Buffer& buffer, double factor) {
  if (factor == 1.0) return;
  if (factor == 0.0) return set_to_zero(buffer);
  require<UsageError>(buffer.dtype == DType::f32, "cannot scale gradients of ", buffer.dtype, ", only of f32");
  backend(buffer.device.kind).scale(tensor_of(buffer), static_cast<float>(factor));
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, std::vector<ReducerSlot> slots, const ReducerOptions& options)
    : group_(group), slots_(std::move(slots)), options_(options), bucket_of_(slots_.size()), ready_(slots_.size(), 0) {
  require<UsageError>(!slots_.empty(), "Reducer: there are no gradients to reduce");
  if (options_.bucket_limits.empty()) options_.bucket_limits.assign(std::begin(kBucketLimits), std::end(kBucketLimits));
  for (const std::size_t limit : options_.bucket_limits)
    require<UsageError>(limit > 0, "a limit in bucket_limits is ", limit, ", expected 1 or more bytes");
  std::vector<BucketItem> items;
  for (const ReducerSlot& slot : slots_)
    items.push_back({static_cast<std::size_t>(end_of(slot) - begin_of(slot)), slot.dtype, slot.device});
  for (const auto& bucket : compute_bucket_assignment_by_size(items, options_.bucket_limits)) add_bucket(bucket);
  // Slots of several dtypes may interleave; all ranks must agree on the order of sending.
  std::sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) { return a.first < b.first; });
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (int i = 0; i < buckets_[b].count; ++i)
      bucket_of_[static_cast<std::size_t>(buckets_[b].first + i)] = static_cast<int>(b);
  }
}

/// Adds the bucket, or several where its slots do not follow one another in memory.
void Reducer::add_bucket(const std::vector<std::size_t>& slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const ReducerSlot& slot = slots_[slots[i]];
    const ReducerSlot& before = slots_[slots[i] == 0 ? 0 : slots[i] - 1];
    const std::size_t gap = static_cast<std::size_t>(before.padding) * size_of(before.dtype);
    const bool follows = i > 0 && slots[i] == slots[i - 1] + 1 && begin_of(slot) == end_of(before) + gap;
    require<UsageError>(
        &slot == &before || slot.count == 0 || begin_of(slot) >= end_of(before) || end_of(slot) <= begin_of(before),
        "the gradients of ", before.name, " and ", slot.name, " overlap");
    if (!follows) {
      buckets_.push_back(
          {static_cast<int>(slots[i]), 1, 1, Buffer(slot.data, slot.count, slot.dtype, slot.device), Work()});
      continue;
    }
    Bucket& bucket = buckets_.back();
    ++bucket.count;
    ++bucket.missing;
    bucket.buffer.count += before.padding + slot.count;
  }
}

void Reducer::mark_ready(int slot) {
  require<UsageError>(slot >= 0 && slot < static_cast<int>(slots_.size()), "gradient ", slot, " of ", slots_.size());
  const auto i = static_cast<std::size_t>(slot);
  require_expected(slot);
  if (!std::exchange(begun_, true)) {
    for (std::size_t other = 0; other < expected_.size(); ++other)
      if (!expected_[other]) zero(other);
  }
  mark(i);
}

void Reducer::require_expected(int slot) const {
  const auto i = static_cast<std::size_t>(slot);
  require<UsageError>(expected_.empty() || expected_[i], "static_graph: the graph has changed: the gradient of ",
                      slots_[i].name, " became ready in step ", steps_ + 1, " on rank ", group_.rank(),
                      ", but not in the first", kGraphsThatChange);
}

void Reducer::mark(std::size_t i) {
  require<UsageError>(!ready_[i], "the gradient of ", slots_[i].name,
                      " became ready twice in one step: it was reduced before it was complete");
  ready_[i] = 1;
  if (--buckets_[static_cast<std::size_t>(bucket_of_[i])].missing == 0) send_ready_buckets();
}

GradBucket Reducer::grad_bucket(std::size_t index) const {
  return {static_cast<int>(index), static_cast<int>(buckets_.size()), buckets_[index].buffer};
}

void Reducer::send_ready_buckets() {
  for (; sent_ < buckets_.size() && buckets_[sent_].missing == 0; ++sent_) {
    Bucket& bucket = buckets_[sent_];
    fault_point("all_reduce");
    if (group_.flight_recorder()) group_.flight_recorder()->next_bucket(static_cast<int>(sent_));
    for (std::size_t part = 0; part <= others_.size(); ++part) scale(in_part(bucket.buffer, part), scale_);
    bucket.work = sum(sent_);
  }
}

Work Reducer::sum(std::size_t index) {
  const Buffer& buffer = buckets_[index].buffer;
  if (options_.comm_hook) {
    for (std::size_t part = 1; part <= others_.size(); ++part)
      backend(buffer.device.kind).add(tensor_of(buffer), tensor_of(in_part(buffer, part)), tensor_of(buffer));
    return options_.comm_hook->start(group_, grad_bucket(index));
  }
  if (blocks_ == 0) return group_.all_reduce(buffer);
  TreeParts parts{.blocks = blocks_};
  for (std::size_t part = 1; part <= others_.size(); ++part) parts.more[part - 1] = in_part(buffer, part).data;
  return group_.all_reduce(buffer, parts);
}

void Reducer::set_parts(int blocks, void* begin, const std::vector<void*>& others) {
  blocks_ = blocks;
  begin_ = static_cast<std::byte*>(begin);
  others_ = others;
}

void Reducer::move(const void* from, void* to) {
  const auto moved = [&](void* data) {
    return static_cast<std::byte*>(to) + (static_cast<std::byte*>(data) - static_cast<const std::byte*>(from));
  };
  for (ReducerSlot& slot : slots_) slot.data = moved(slot.data);
  for (Bucket& bucket : buckets_) bucket.buffer.data = moved(bucket.buffer.data);
}

Buffer Reducer::in_part(const Buffer& buffer, std::size_t part) const {
  if (part == 0) return buffer;
  const std::ptrdiff_t at = static_cast<std::byte*>(buffer.data) - begin_;
  return {static_cast<std::byte*>(others_[part - 1]) + at, buffer.count, buffer.dtype, buffer.device};
}

Buffer Reducer::buffer_of(std::size_t slot) const {
  const ReducerSlot& one = slots_[slot];
  return {one.data, one.count, one.dtype, one.device};
}

void Reducer::zero_parts(int slot) {
  const Buffer buffer = buffer_of(static_cast<std::size_t>(slot));
  for (std::size_t part = 1; part <= others_.size(); ++part) set_to_zero(in_part(buffer, part));
}

void Reducer::zero(std::size_t i) {
  set_to_zero(buffer_of(i));
  zero_parts(static_cast<int>(i));
  mark(i);
}

void Reducer::zero_missing() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!ready_[i]) zero(i);
}

/// Notes which slots this rank has used; agree_on_used() adds those of the other ranks.
void Reducer::note_used() {
  if ((options_.find_unused_parameters || options_.static_graph) && !agreed_)
    used_.assign(ready_.begin(), ready_.end());
}

void Reducer::agree_on_used() {
  if (used_.empty() || agreed_) return;
  require<UsageError>(!recorded(),
                      "a step cannot be recorded where ranks agree on the host which parameters they used: use "
                      "static_graph in place of find_unused_parameters");
  group_.all_reduce(Buffer(std::span(used_)), ReduceOp::max).wait();
  agreed_ = options_.static_graph;
}

void Reducer::contribute_zeros() {
  note_used();
  zero_missing();
  wait_for_sent();
}

void Reducer::finish() {
  note_used();
  settle_missing();
  wait_for_sent();
}

void Reducer::settle_missing() {
  if (options_.static_graph && expected_.empty()) {
    expected_ = ready_;
    return zero_missing();
  }
  if (sent_ == buckets_.size()) return;
  if (options_.static_graph) {
    throw UsageError(concat("static_graph: the graph has changed: step ", steps_ + 1, " on rank ", group_.rank(),
                            " has no gradient for ", missing_names(), ", but the first step had", kGraphsThatChange));
  }
  if (options_.find_unused_parameters) zero_missing();
  if (sent_ < buckets_.size()) {
    throw UsageError(concat("backward ended on rank ", group_.rank(), " without a gradient for ", missing_names(),
                            "; a parameter that the loss does not use, or that was frozen, needs the option "
                            "find_unused_parameters; after one was replaced, make a new wrapper"));
  }
}

bool Reducer::recorded() const { return recording_of(slots_.front().device) != 0; }

void Reducer::wait_for_sent() {
  const bool counts = !recorded();
  const std::size_t sent = sent_;
  std::optional<TraceSpan> span;
  if (counts) span.emplace("communication", slots_.front().device, TraceEvent::Kind::work, group_.rank());
  agree_on_used();
  end_step();
  for (std::size_t i = 0; options_.comm_hook && i < sent; ++i) options_.comm_hook->finish(group_, grad_bucket(i));
  if (counts) ++steps_;
}

void Reducer::end_step() {
  const std::size_t sent = std::exchange(sent_, 0);
  std::fill(ready_.begin(), ready_.end(), char{0});
  begun_ = false;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.count;
  std::exception_ptr failure;
  for (std::size_t i = 0; i < sent; ++i) {
    try {
      std::exchange(buckets_[i].work, Work()).wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::string Reducer::missing_names() const {
  constexpr int kNamed = 8;
  std::string names;
  int missing = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!ready_[i] && ++missing <= kNamed) names += (missing > 1 ? ", " : "") + slots_[i].name;
  }
  return missing > kNamed ? concat(names, " and ", missing - kNamed, " more") : names;
}

}  // namespace duet::ddp
