#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/reducer.h"
#include "lib/error.h"
#include "lib/half.h"
#include "lib/random.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kCounts[] = {3000, 1, 2048};
constexpr std::int64_t kCount = 5049;

std::vector<float> gradients_of(int rank) {
  Mt19937 generator(static_cast<std::uint64_t>(rank) + 3);
  std::vector<float> values(kCount);
  generator.uniform(std::span<float>(values), -1.0, 1.0);
  return values;
}

/// Two steps of one rank, in buckets of one slot each.
std::vector<float> reduce(ProcessGroup& group, std::shared_ptr<CommHook> hook) {
  std::vector<float> flat(kCount);
  std::vector<ReducerSlot> slots;
  std::int64_t offset = 0;
  for (const std::int64_t count : kCounts) {
    slots.push_back({flat.data() + offset, count, DType::f32, {}, "slot" + std::to_string(slots.size())});
    offset += count;
  }
  Reducer reducer(group, slots, {.bucket_limits = {1}, .comm_hook = std::move(hook)});
  for (int step = 0; step < 2; ++step) {
    std::ranges::copy(gradients_of(group.rank()), flat.begin());
    for (int slot = 0; slot < 3; ++slot) reducer.mark_ready(slot);
    reducer.finish();
  }
  return flat;
}

/// Sums in double and rounds once.
class DoubleHook final : public CommHook {
 public:
  Work start(ProcessGroup& group, const GradBucket& bucket) override {
    const auto* from = static_cast<const float*>(bucket.gradients.data);
    sums_.resize(static_cast<std::size_t>(bucket.count));
    std::vector<double>& sum = sums_[static_cast<std::size_t>(bucket.index)];
    sum.assign(from, from + bucket.gradients.count);
    return group.all_reduce(std::span(sum));
  }
  void finish(ProcessGroup&, const GradBucket& bucket) override {
    finished.push_back(bucket.index);
    auto* to = static_cast<float*>(bucket.gradients.data);
    for (const double value : sums_[static_cast<std::size_t>(bucket.index)]) *to++ = static_cast<float>(value);
  }
  std::vector<int> finished;

 private:
  std::vector<std::vector<double>> sums_;
};

}  // namespace

TEST_CASE("a hook of one's own takes the place of all_reduce, bucket by bucket") {
  std::vector<int> wrong(3);
  std::vector<std::vector<int>> finished(3);
  run_ranks(Over::memory, 3, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto hook = std::make_shared<DoubleHook>();
    const std::vector<float> sums = reduce(group, hook);
    for (std::size_t i = 0; i < sums.size(); ++i)
      wrong[rank] += sums[i] != static_cast<float>((double{gradients_of(0)[i]} + double{gradients_of(1)[i]}) +
                                                   double{gradients_of(2)[i]});
    finished[rank] = hook->finished;
  });
  CHECK(wrong == std::vector<int>(3, 0));
  for (const auto& buckets : finished) CHECK(buckets == std::vector<int>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("compression sums 16-bit gradients in single precision, over every backend") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  for (const HalfFormat format : {HalfFormat::f16, HalfFormat::bf16}) {
    const auto rounded = [&](float value) {
      return format == HalfFormat::f16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
    };
    for (const int size : {1, 2, 4}) {
      std::vector<float> expected(kCount);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        std::vector<float> parts;
        for (int rank = 0; rank < size; ++rank) parts.push_back(rounded(gradients_of(rank)[i]));
        for (; parts.size() > 1; parts.resize(parts.size() / 2))
          for (std::size_t k = 0; k < parts.size() / 2; ++k) parts[k] = parts[2 * k] + parts[2 * k + 1];
        expected[i] = parts[0];
      }
      std::vector<char> same(static_cast<std::size_t>(size));
      run_ranks(over, size, [&](ProcessGroup& group) {
        same[static_cast<std::size_t>(group.rank())] =
            reduce(group, std::make_shared<CompressionHook>(format)) == expected;
      });
      CHECK(same == std::vector<char>(same.size(), 1));
    }
  }
}

TEST_CASE("compression refuses what it cannot make smaller") {
  run_ranks(Over::memory, 1, [](ProcessGroup& group) {
    std::vector<double> values(4);
    Reducer reducer(group, {{values.data(), 4, DType::f64, {}, "w"}},
                    {.comm_hook = std::make_shared<CompressionHook>(HalfFormat::bf16)});
    CHECK_THROWS_AS(reducer.mark_ready(0), UsageError);
  });
}
