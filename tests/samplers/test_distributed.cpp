// Tables recorded from torch.utils.data.DistributedSampler.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "lib/error.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "samplers/sequential.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::samplers;
using Longs = std::vector<std::int64_t>;
using Table = std::vector<Longs>;

namespace {

Longs list(const data::Sampler& sampler) { return {sampler.indices().begin(), sampler.indices().end()}; }

/// What every rank reads in `epoch`.
Table table(std::int64_t n, DistributedOptions options, std::int64_t epoch = 0) {
  Table ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    DistributedSampler sampler(n, options);
    sampler.set_epoch(epoch);
    CHECK(sampler.size() == std::ssize(list(sampler)));
    ranks.push_back(list(sampler));
  }
  return ranks;
}

}  // namespace

TEST_CASE("strided ranks without shuffling") {
  CHECK(table(10, {.world_size = 3, .shuffle = false}) == Table{{0, 3, 6, 9}, {1, 4, 7, 0}, {2, 5, 8, 1}});
  CHECK(table(10, {.world_size = 3, .shuffle = false, .drop_last = true}) == Table{{0, 3, 6}, {1, 4, 7}, {2, 5, 8}});
  CHECK(table(2, {.world_size = 5, .shuffle = false}) == Table{{0}, {1}, {0}, {1}, {0}});
  CHECK(table(3, {.world_size = 8, .shuffle = false, .drop_last = true}) == Table(8));
  CHECK(table(0, {.world_size = 2}) == Table(2));
}

TEST_CASE("strided ranks, shuffled by seed and epoch") {
  CHECK(table(10, {.world_size = 3}) == Table{{4, 5, 0, 2}, {1, 3, 8, 4}, {7, 9, 6, 1}});
  CHECK(table(10, {.world_size = 3}, 1) == Table{{5, 2, 9, 4}, {6, 0, 3, 5}, {1, 8, 7, 6}});
  CHECK(table(10, {.world_size = 3, .seed = 5}, 2) == Table{{5, 4, 9, 2}, {0, 1, 6, 5}, {3, 7, 8, 0}});
  CHECK(table(10, {.world_size = 4, .drop_last = true}) == Table{{4, 3}, {1, 9}, {7, 0}, {5, 8}});
}

TEST_CASE("rank 3 of 8 over MNIST") {
  DistributedSampler sampler(60000, {.world_size = 8, .rank = 3});
  sampler.set_epoch(1);
  CHECK(sampler.size() == 7500);
  const Longs all = list(sampler);
  CHECK(Longs(all.begin(), all.begin() + 5) == Longs{23645, 33583, 29135, 10586, 35988});
}

TEST_CASE("ranks outside the world") {
  const auto message = [](int rank) {
    try {
      DistributedSampler(10, {.world_size = 3, .rank = rank});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(3) == "Invalid rank 3, rank should be in the interval [0, 2]");
  CHECK(message(-1) == "Invalid rank -1, rank should be in the interval [0, 2]");
  CHECK_THROWS_AS(DistributedSampler(10, {.world_size = 0}), UsageError);
  CHECK_THROWS_AS(DistributedSampler(-1, {}), UsageError);
}

TEST_CASE("a random sampler and the distributed ones walk the same order") {
  RandomSampler whole(10, 5);
  whole.set_epoch(2);
  const Table ranks = table(10, {.world_size = 2, .seed = 5}, 2);
  for (std::size_t i = 0; i < 10; ++i) CHECK(list(whole)[i] == ranks[i % 2][i / 2]);
}

TEST_CASE("a random sampler draws its seed from a shared generator only when an epoch begins") {
  Mt19937 generator(1234), untouched(1234);
  RandomSampler sampler(10, generator);
  CHECK(sampler.indices().empty());
  const auto seed = static_cast<std::uint64_t>(untouched.random_int64());
  sampler.set_epoch(0);
  CHECK(list(sampler) == Mt19937(seed).randperm(10));
  CHECK(generator.random() == untouched.random());
}

TEST_CASE("empty sets") {
  CHECK_THROWS_WITH(RandomSampler(0, 1), "num_samples should be a positive integer value, but got num_samples=0");
  CHECK(SequentialSampler(0).size() == 0);
  CHECK(list(SequentialSampler(3)) == Longs{0, 1, 2});
  CHECK_THROWS_AS(SequentialSampler(-1), UsageError);
}
