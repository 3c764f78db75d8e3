#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/reducer.h"
#include "lib/error.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/allocations.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

using Indices = std::vector<std::size_t>;

std::vector<BucketItem> floats(const std::vector<std::size_t>& counts) {
  std::vector<BucketItem> items;
  for (const std::size_t count : counts) items.push_back({count * 4, DType::f32});
  return items;
}

std::vector<Indices> assign(const std::vector<BucketItem>& items, const std::vector<std::size_t>& limits) {
  return compute_bucket_assignment_by_size(items, limits);
}

// SimpleCNN in the order of the gradients' arrival: fc2 and fc1, bias before weight, then conv2 and conv1.
const std::vector<std::size_t> kSimpleCnn = {10, 1280, 128, 401408, 18432, 64, 288, 32};

/// Records what is sent, in order.
class RecordingGroup final : public ProcessGroup {
 public:
  RecordingGroup() : ProcessGroup(0, 2) {}
  const char* backend() const override { return "recording"; }
  std::vector<Buffer> sent;

 protected:
  Work start(const Call& call) override {
    sent.push_back(call.in);
    return {};
  }
  std::unique_ptr<ProcessGroup> connect_subset(const Subset&) const override { return nullptr; }
};

/// Slots one after the other in one buffer.
std::vector<ReducerSlot> slots_in(std::vector<float>& flat, const std::vector<std::int64_t>& counts) {
  std::vector<ReducerSlot> slots;
  float* next = flat.data();
  for (const std::int64_t count : counts) {
    slots.push_back({next, count, DType::f32, {}, "slot" + std::to_string(slots.size())});
    next += count;
  }
  return slots;
}

}  // namespace

TEST_CASE("bucket tables of PyTorch") {
  CHECK(assign(floats({100, 200, 100, 50}), {400}) == std::vector<Indices>{{0}, {1}, {2}, {3}});
  std::vector<BucketItem> mixed;
  for (int i = 0; i < 3; ++i) {
    mixed.push_back({200, DType::f32});
    mixed.push_back({200, DType::f64});
  }
  CHECK(assign(mixed, {400}) == std::vector<Indices>{{0, 2}, {1, 3}, {4}, {5}});
  CHECK(assign(mixed, {200, 400}) == std::vector<Indices>{{0}, {1}, {2, 4}, {3, 5}});
  CHECK(assign(floats({10, 10, 10, 10}), {40, 80}) == std::vector<Indices>{{0}, {1, 2}, {3}});
}

TEST_CASE("bucket tables of SimpleCNN") {
  const auto items = floats(kSimpleCnn);
  const auto buckets = compute_bucket_assignment_by_size(items, kBucketLimits);
  const auto bytes = [&](const Indices& bucket) {
    return std::accumulate(bucket.begin(), bucket.end(), std::size_t{0},
                           [&](std::size_t sum, std::size_t i) { return sum + items[i].bytes; });
  };
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0] == Indices{0, 1, 2, 3});
  CHECK(buckets[1] == Indices{4, 5, 6, 7});
  CHECK(bytes(buckets[0]) == 1611304);
  CHECK(bytes(buckets[1]) == 75264);
  const auto one = compute_bucket_assignment_by_size(items, std::vector<std::size_t>{std::size_t{1} << 40});
  REQUIRE(one.size() == 1);
  CHECK(bytes(one[0]) == 1686568);
}

TEST_CASE("buckets: edge cases") {
  CHECK(assign({}, {1}).empty());
  CHECK(assign(floats({0, 1}), {4}) == std::vector<Indices>{{0, 1}});
  CHECK(assign(floats({1, 1}), {0}) == std::vector<Indices>{{0}, {1}});
  CHECK_THROWS_AS(assign(floats({1}), {}), UsageError);
  // Other devices, other buckets.
  const std::vector<BucketItem> devices = {{4, DType::f32, {DeviceKind::cpu, 0}},
                                           {4, DType::f32, {DeviceKind::cpu, 1}}};
  CHECK(assign(devices, {8}) == std::vector<Indices>{{0}, {1}});
}

TEST_CASE("slots with padding between them share a bucket, whose size counts without it") {
  std::vector<float> flat(60);
  RecordingGroup group;
  std::vector<ReducerSlot> slots = slots_in(flat, {10, 10, 20, 5, 15});
  slots[0].count = 7;
  slots[0].padding = 3;
  slots[2].count = 18;
  slots[2].padding = 2;  // the next slot is in another bucket
  Reducer reducer(group, slots, {.bucket_limits = {17 * 4, 18 * 4}});
  for (int slot = 0; slot < 5; ++slot) reducer.mark_ready(slot);
  REQUIRE(group.sent.size() == 3);
  CHECK(group.sent[0].count == 20);
  CHECK(group.sent[1].data == flat.data() + 20);
  CHECK(group.sent[1].count == 18);
  CHECK(group.sent[2].data == flat.data() + 40);
  CHECK(group.sent[2].count == 20);
}

TEST_CASE("buckets are sent in order, as soon as they are full") {
  std::vector<float> flat(60);
  RecordingGroup group;
  Reducer reducer(group, slots_in(flat, {10, 10, 20, 5, 15}), {.bucket_limits = {80}});
  for (int step = 0; step < 2; ++step) {
    group.sent.clear();
    reducer.mark_ready(2);
    reducer.mark_ready(1);
    CHECK(group.sent.empty());  // the second bucket is full, but the first is not
    reducer.mark_ready(0);
    REQUIRE(group.sent.size() == 2);
    CHECK(group.sent[0].data == flat.data());
    CHECK(group.sent[0].count == 20);
    CHECK(group.sent[1].data == flat.data() + 20);
    CHECK(group.sent[1].count == 20);
    reducer.mark_ready(4);
    reducer.mark_ready(3);
    REQUIRE(group.sent.size() == 3);
    CHECK(group.sent[2].count == 20);
    reducer.finish();
  }
  CHECK(reducer.steps() == 2);
}

TEST_CASE("a slot twice and a missing slot are errors that name it") {
  std::vector<float> flat(30, 1.0f);
  RecordingGroup group;
  Reducer reducer(group, slots_in(flat, {10, 10, 10}));
  reducer.mark_ready(1);
  CHECK_THROWS_WITH(reducer.mark_ready(1), ContainsSubstring("slot1") && ContainsSubstring("twice"));
  CHECK_THROWS_WITH(reducer.finish(), ContainsSubstring("slot0, slot2") && ContainsSubstring("rank 0"));
  reducer.end_step();
  for (const int slot : {2, 0, 1}) reducer.mark_ready(slot);
  reducer.finish();
  CHECK(group.sent.size() == 1);
  CHECK_THROWS_AS(reducer.mark_ready(3), UsageError);

  Reducer lenient(group, slots_in(flat, {10, 10, 10}), {.find_unused_parameters = true});
  lenient.mark_ready(1);
  lenient.finish();
  CHECK(flat[9] == 0);
  CHECK(flat[10] == 1);
  CHECK(flat[20] == 0);
}

TEST_CASE("of a static graph, unused slots hold up no bucket, and a change is an error that names the slot") {
  std::vector<float> flat(40, 1.0f);
  RecordingGroup group;
  Reducer reducer(group, slots_in(flat, {10, 10, 10, 10}), {.bucket_limits = {40}, .static_graph = true});
  for (const int slot : {0, 2, 3}) reducer.mark_ready(slot);
  CHECK(group.sent.size() == 1);
  reducer.finish();               // the second slot is unused
  CHECK(group.sent.size() == 5);  // and, this once, which slots are used
  CHECK(reducer.used(0));
  CHECK_FALSE(reducer.used(1));
  for (int step = 0; step < 2; ++step) {
    std::fill(flat.begin(), flat.end(), 1.0f);
    group.sent.clear();
    for (const int slot : {0, 2, 3}) reducer.mark_ready(slot);
    CHECK(group.sent.size() == 4);  // while backward may go on
    CHECK(flat[9] == 1.0f);
    CHECK(flat[10] == 0.0f);
    CHECK(flat[20] == 1.0f);
    reducer.finish();
  }
  reducer.mark_ready(0);
  CHECK_THROWS_WITH(reducer.mark_ready(1), ContainsSubstring("the gradient of slot1 became ready in step 4 on rank 0"));
  reducer.end_step();
  reducer.mark_ready(0);
  reducer.mark_ready(2);
  CHECK_THROWS_WITH(reducer.finish(), ContainsSubstring("static_graph: the graph has changed: step 4 on rank 0 has no "
                                                        "gradient for slot3, but the first step had; a graph that "
                                                        "changes needs find_unused_parameters"));
  CHECK_THROWS_WITH(Reducer(group, slots_in(flat, {10}), {.bucket_limits = {40, 0}}),
                    "a limit in bucket_limits is 0, expected 1 or more bytes");
}

TEST_CASE("slots apart in memory are sent apart, overlapping ones refused") {
  std::vector<float> flat(30);
  RecordingGroup group;
  auto slots = slots_in(flat, {10, 10});
  slots[1].data = flat.data() + 15;
  Reducer apart(group, slots);
  for (const int slot : {0, 1}) apart.mark_ready(slot);
  CHECK(group.sent.size() == 2);
  slots[1].data = flat.data() + 5;
  CHECK_THROWS_WITH(Reducer(group, slots), ContainsSubstring("slot0 and slot1 overlap"));
  CHECK_THROWS_WITH(Reducer(group, {}), "Reducer: there are no gradients to reduce");
}

TEST_CASE("gradients are scaled before they are sent") {
  std::vector<float> flat = {3.0f, 5.0f};
  SoloGroup group;
  Reducer reducer(group, slots_in(flat, {1, 1}), {});
  reducer.set_scale(1.0 / 3.0);
  reducer.mark_ready(0);
  reducer.mark_ready(1);
  reducer.finish();
  CHECK(flat[0] == 3.0f * static_cast<float>(1.0 / 3.0));
}

TEST_CASE("ranks reduce to the same sums, and steps after the second allocate nothing") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = 2;
  std::vector<std::vector<float>> results(size);
  long allocations = 0;
  std::string first;
  run_ranks(over, size, [&](ProcessGroup& group) {
    std::vector<float> flat(50000);
    Reducer reducer(group, slots_in(flat, {10000, 10000, 30000}), {.bucket_limits = {60000}});
    const auto step = [&] {
      std::fill(flat.begin(), flat.end(), static_cast<float>(group.rank() + 1));
      for (int slot = 0; slot < 3; ++slot) reducer.mark_ready(slot);
      reducer.finish();
    };
    for (int i = 0; i < 3; ++i) step();
    std::unique_ptr<CountAllocations> counter;
    if (group.rank() == 0) counter = std::make_unique<CountAllocations>();
    group.barrier().wait();
    for (int i = 0; i < 3; ++i) step();
    group.barrier().wait();
    if (counter) {
      allocations = counter->own();
      first = counter->first_own();
      counter.reset();
    }
    group.barrier().wait();
    results[static_cast<std::size_t>(group.rank())] = flat;
  });
  for (const auto& flat : results) CHECK(flat == std::vector<float>(50000, 3.0f));
  INFO(first);
  if (over != Over::memory) CHECK(allocations == 0);  // messages in memory are allocated, of course
}
