#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "samplers/batch.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "samplers/sequential.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::samplers;
using Longs = std::vector<std::int64_t>;
using Table = std::vector<Longs>;

namespace {

Table steps(const data::BatchSampler& sampler) {
  Table all;
  for (std::int64_t step = 0; step < sampler.steps(); ++step) {
    const auto indices = sampler.step(step).indices;
    all.emplace_back(indices.begin(), indices.end());
  }
  return all;
}

auto counting(std::int64_t n) { return std::make_unique<SequentialSampler>(n); }

}  // namespace

TEST_CASE("batches are runs, the last one short or dropped") {
  CHECK(steps(Batches(counting(10), {.batch_size = 4})) == Table{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
  CHECK(steps(Batches(counting(10), {.batch_size = 4, .drop_last = true})) == Table{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(steps(Batches(counting(8), {.batch_size = 4})) == Table{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(steps(Batches(counting(0), {.batch_size = 4})).empty());
  CHECK(steps(Batches(counting(3), {.batch_size = 4, .drop_last = true})).empty());
  CHECK_THROWS_AS(Batches(counting(3), {.batch_size = 2}).step(2), UsageError);
  CHECK_THROWS_AS(Batches(counting(3), {.batch_size = 2}).step(-1), UsageError);
}

TEST_CASE("an order that changes its size with the epoch is an error") {
  struct Changing final : data::Sampler {
    std::int64_t size() const override { return std::ssize(order); }
    void set_epoch(std::int64_t epoch) override { order.assign(epoch == 2 ? 41 : 40, 0); }
    std::span<const std::int64_t> indices() const override { return order; }
    Longs order = Longs(40, 0);
  };
  Batches batches(std::make_unique<Changing>(), {.batch_size = 12});
  CHECK_NOTHROW(batches.set_epoch(1));
  CHECK_THROWS_WITH(batches.set_epoch(2),
                    duet_test::ContainsSubstring("the sampler's size() is 41 in epoch 2, expected 40"));
}

TEST_CASE("the steps of the tutorial's parts") {  // bsz = int(128 / size) over 60000 / size images
  const std::pair<int, std::int64_t> expected[] = {{1, 469}, {2, 469}, {3, 477}, {4, 469}};
  for (const auto& [size, count] : expected) {
    CHECK(Batches(counting(60000 / size), {.batch_size = 128 / size}).steps() == count);
  }
}

TEST_CASE("strided ranks stand one after the other in the global batch") {
  for (int rank = 0; rank < 3; ++rank) {
    const Batches batches(std::make_unique<DistributedSampler>(10, DistributedOptions{.world_size = 3, .rank = rank}),
                          {.batch_size = 3, .world_size = 3, .rank = rank});
    REQUIRE(batches.steps() == 2);
    CHECK(batches.step(0).first == 3 * rank);
    CHECK(batches.step(0).global == 9);
    CHECK(batches.step(1).first == rank);
    CHECK(batches.step(1).global == 3);
  }
}

TEST_CASE("blocked ranks share every global batch, whatever their number") {
  RandomSampler order(1003, 7);
  for (const int world_size : {1, 2, 3, 4, 5, 8, 16}) {
    for (const std::int64_t epoch : {0, 1}) {
      order.set_epoch(epoch);
      Table joined(8);
      for (int rank = 0; rank < world_size; ++rank) {
        BlockedBatches batches(std::make_unique<RandomSampler>(1003, 7),
                               {.global_batch = 128, .world_size = world_size, .rank = rank});
        batches.set_epoch(epoch);
        REQUIRE(batches.steps() == 8);
        for (std::int64_t step = 0; step < 8; ++step) {
          const auto part = batches.step(step);
          Longs& global = joined[static_cast<std::size_t>(step)];
          CHECK(part.first == std::ssize(global));
          CHECK(part.global == (step < 7 ? 128 : 107));
          global.insert(global.end(), part.indices.begin(), part.indices.end());
        }
      }
      Longs all;
      for (const Longs& global : joined) all.insert(all.end(), global.begin(), global.end());
      CHECK(all == Longs(order.indices().begin(), order.indices().end()));
    }
  }
}

TEST_CASE("blocked ranks have the rows of whole blocks, or are cut at floor(r N / W)") {
  using Sizes = std::pair<std::size_t, std::size_t>;
  const bool whole_blocks = GENERATE(true, false);
  const auto sizes = [&](int rank) {
    const BlockedBatches batches(counting(12),
                                 {.global_batch = 10, .world_size = 3, .rank = rank, .whole_blocks = whole_blocks});
    return Sizes(batches.step(0).indices.size(), batches.step(1).indices.size());
  };
  CHECK(sizes(0) == (whole_blocks ? Sizes(2, 0) : Sizes(3, 0)));  // a step with no rows for this rank
  CHECK(sizes(1) == (whole_blocks ? Sizes(4, 1) : Sizes(3, 1)));
  CHECK(sizes(2) == Sizes(4, 1));
  CHECK(BlockedBatches(counting(12), {.global_batch = 10, .drop_last = true}).steps() == 1);
}

TEST_CASE("ranks of one order have its hash, other orders and other epochs another one") {
  const auto blocked = [](int rank, std::uint64_t seed, std::int64_t epoch) {
    BlockedBatches batches(std::make_unique<RandomSampler>(10, seed),
                           {.global_batch = 4, .world_size = 2, .rank = rank});
    batches.set_epoch(epoch);
    return batches.step(1).order;
  };
  const auto strided = [](int rank, std::uint64_t seed, int world_size) {
    return Batches(std::make_unique<DistributedSampler>(
                       10, DistributedOptions{.world_size = 2, .rank = rank, .seed = seed}),
                   {.batch_size = 2, .world_size = world_size, .rank = world_size == 1 ? 0 : rank})
        .step(1)
        .order;
  };
  CHECK(blocked(0, 5, 3) == blocked(1, 5, 3));
  CHECK(blocked(0, 5, 3) != blocked(0, 6, 3));
  CHECK(blocked(0, 5, 3) != blocked(0, 5, 4));
  CHECK(strided(0, 5, 2) == strided(1, 5, 2));
  CHECK(strided(0, 5, 2) != strided(0, 6, 2));
  CHECK(strided(0, 5, 1) != strided(1, 5, 1));  // each a whole of its own
  CHECK(BlockedBatches(counting(10), {.global_batch = 4}).step(0).order == 0);
}

TEST_CASE("batches that cannot be") {
  CHECK_THROWS_WITH(Batches(std::make_unique<DistributedSampler>(10, DistributedOptions{.world_size = 2}),
                            {.batch_size = 2, .world_size = 2, .rank = 1}),
                    "the order is the part of rank 0 of 2, but its batches are those of rank 1 of 2");
  CHECK_THROWS_AS(Batches(counting(3), {.batch_size = 0}), UsageError);
  CHECK_THROWS_AS(Batches(counting(3), {.batch_size = 1, .world_size = 0}), UsageError);
  CHECK_THROWS_AS(BlockedBatches(counting(3), {.global_batch = -1}), UsageError);
  CHECK_THROWS_AS(BlockedBatches(counting(3), {.global_batch = 1, .world_size = 2, .rank = 2}), UsageError);
  Mt19937 generator(1);
  const Batches unset(std::make_unique<RandomSampler>(3, generator), {.batch_size = 1});
  CHECK_THROWS_WITH(unset.step(0), "set_epoch has not been called");
}
