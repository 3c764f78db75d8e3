// Reductions of f16 and bf16: in single precision, in the tree's order, rounded once, with the same bits everywhere.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/group/reduce_kernels.h"
#include "lib/random.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::avg};
using Bits = std::vector<std::uint16_t>;

template <class Half>
std::vector<Half> values_of(int rank, std::size_t count) {
  Mt19937 generator(static_cast<std::uint64_t>(rank) + 11);
  std::vector<float> values(count);
  generator.uniform(std::span<float>(values), -3.0, 3.0);
  return {values.begin(), values.end()};
}

float combined(float a, float b, ReduceOp op) {
  switch (op) {
    case ReduceOp::product: return a * b;
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    default: return a + b;
  }
}

/// What all ranks are to get; or, rounded at every step, what they are not.
template <class Half>
Bits expected(int size, std::size_t count, ReduceOp op, bool rounds_always = false) {
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::vector<Half>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(values_of<Half>(rank, count));
  std::vector<float> parts(ranks);
  const auto combine = [&](std::size_t into, std::size_t from) {
    const float both = combined(parts[into], parts[from], op);
    parts[into] = rounds_always ? Half(both) : both;
  };
  Bits bits;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) parts[rank] = inputs[rank][i];
    if (std::has_single_bit(ranks)) {
      for (std::size_t step = 1; step < ranks; step *= 2)
        for (std::size_t rank = 0; rank < ranks; rank += 2 * step) combine(rank, rank + step);
    } else {
      for (std::size_t rank = 1; rank < ranks; ++rank) combine(0, rank);
    }
    bits.push_back(Half(op == ReduceOp::avg ? parts[0] / static_cast<float>(size) : parts[0]).bits);
  }
  return bits;
}

template <class Half>
Bits bits_of(std::span<const Half> values) {
  Bits bits;
  for (const Half value : values) bits.push_back(value.bits);
  return bits;
}

/// Whether this rank's all_reduce gives those bits, from memory of its own and from the group's.
template <class Half>
bool is_reduced(ProcessGroup& group, std::size_t count, ReduceOp op, const Bits& wanted) {
  std::vector<Half> own = values_of<Half>(group.rank(), count);
  const std::vector<Half> input = own;
  group.all_reduce(std::span(own), op).wait();
  bool same = bits_of<Half>(own) == wanted;
  if (const auto storage = group.shared_storage(count * sizeof(Half))) {
    const std::span<Half> shared(static_cast<Half*>(storage->data()), count);
    std::ranges::copy(input, shared.begin());
    group.all_reduce(shared, op).wait();
    same = same && bits_of<Half>(shared) == wanted;
  }
  return same;
}

template <class Half>
void check_bits(Over over, int size, std::size_t count, std::span<const ReduceOp> ops) {
  for (const ReduceOp op : ops) {
    const Bits wanted = expected<Half>(size, count, op);
    INFO(size << " ranks, " << count << ' ' << dtype_of<Half>() << ", " << name(op));
    std::vector<char> same(static_cast<std::size_t>(size));
    run_ranks(over, size, [&](ProcessGroup& group) {
      same[static_cast<std::size_t>(group.rank())] = is_reduced<Half>(group, count, op, wanted);
    });
    CHECK(same == std::vector<char>(same.size(), 1));
  }
}

}  // namespace

TEST_CASE("16-bit reductions are rounded once, in the tree's order, to the same bits over every backend") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  for (const std::size_t count : {std::size_t{1}, std::size_t{3001}}) {
    check_bits<Float16>(over, size, count, kOps);
    check_bits<BFloat16>(over, size, count, kOps);
  }
  // More than fits any staging memory at once.
  if (size == 3 || size == 4) check_bits<BFloat16>(over, size, 300'011, {kOps, 1});
}

TEST_CASE("rounding once shows") {  // else the test above proves nothing
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::avg}) {
    CHECK(expected<Float16>(4, 3001, op) != expected<Float16>(4, 3001, op, true));
    CHECK(expected<BFloat16>(4, 3001, op) != expected<BFloat16>(4, 3001, op, true));
  }
}

TEST_CASE("a 16-bit average may leave the range on the way, a sum may not") {
  const float largest = std::bit_cast<Float16>(std::uint16_t{0x7BFF});
  std::vector<std::vector<Float16>> averages(4), sums(4);
  run_ranks(Over::memory, 4, [&](ProcessGroup& group) {
    std::vector<Float16> average = {Float16(largest), Float16(-0.0f), Float16(group.rank() == 2 ? std::nanf("") : 1)};
    std::vector<Float16> sum = average;
    group.all_reduce(std::span(average), ReduceOp::avg).wait();
    group.all_reduce(std::span(sum)).wait();
    averages[static_cast<std::size_t>(group.rank())] = average;
    sums[static_cast<std::size_t>(group.rank())] = sum;
  });
  for (std::size_t rank = 0; rank < averages.size(); ++rank) {
    CHECK(averages[rank].at(0) == largest);
    CHECK(std::isinf(sums[rank].at(0)));
    CHECK(averages[rank].at(1).bits == 0x8000);
    CHECK(std::isnan(averages[rank].at(2)));
  }
}

TEST_CASE("a group of one leaves 16-bit numbers as they are") {
  SoloGroup group;
  for (const ReduceOp op : kOps) CHECK(is_reduced<Float16>(group, 9, op, bits_of<Float16>(values_of<Float16>(0, 9))));
}

TEST_CASE("ranks that disagree about 16-bit types fail with both sides named") {
  const auto failures = try_ranks(Over::shm, 2, {.timeout = std::chrono::seconds(60)}, [](ProcessGroup& group) {
    std::vector<Float16> half(4);
    std::vector<BFloat16> other(4);
    (group.rank() == 0 ? group.all_reduce(std::span(half)) : group.all_reduce(std::span(other))).wait();
  });
  for (const auto& failure : failures)
    CHECK_THAT(text_of(failure), ContainsSubstring("rank 0 calls all_reduce of 4 f16 (sum); rank 1 calls all_reduce of "
                                                   "4 bf16 (sum)"));
}

TEST_CASE("reduce_halves rounds nothing, and takes only 16-bit numbers") {
  std::vector<BFloat16> a = {BFloat16(256.0f)}, b = {BFloat16(1.0f)};
  void* const parts[] = {a.data(), b.data()};
  float sum = 0;
  reduce_halves(parts, 1, DType::bf16, ReduceOp::sum, &sum);
  CHECK(sum == 257);
  CHECK(a[0] == 256);
  CHECK_THROWS_WITH(reduce_halves(parts, 1, DType::f32, ReduceOp::sum, &sum),
                    "reduce_halves is for f16 and bf16, got f32");
}
