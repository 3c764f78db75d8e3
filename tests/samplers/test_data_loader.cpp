// Orders and draws recorded from torch.utils.data.DataLoader.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lib/data/partitioner.h"
#include "lib/error.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::samplers;
using Longs = std::vector<std::int64_t>;
using Table = std::vector<Longs>;

namespace {

/// n samples without values whose labels are their numbers.
data::TensorDataset numbered(std::int64_t n) {
  Longs labels(static_cast<std::size_t>(n));
  std::iota(labels.begin(), labels.end(), 0);
  return data::TensorDataset(zeros({n, 1}), from_values<std::int64_t>({n}, labels));
}

Table epoch(data::Loader& loader) {
  Table all;
  for (auto& [images, labels] : loader) {
    const auto values = labels.span<std::int64_t>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

}  // namespace

TEST_CASE("manual_seed(1234), ten items, batches of four") {
  const auto dataset = numbered(10);
  const int workers = GENERATE(0, 1, 3);
  Mt19937 generator(1234);
  auto loader = data_loader(dataset, {.batch_size = 4, .shuffle = true, .generator = &generator, .workers = workers});
  CHECK(epoch(loader) == Table{{2, 1, 3, 6}, {7, 9, 5, 4}, {8, 0}});
  CHECK(epoch(loader) == Table{{3, 0, 9, 5}, {2, 6, 4, 7}, {8, 1}});
}

TEST_CASE("an epoch draws two numbers with shuffle, one without or with a sampler, none when it is made") {
  const auto dataset = numbered(10);
  const auto draws = [&](DataLoaderOptions options) {
    Mt19937 generator(1), count(1);
    options.generator = &generator;
    auto loader = data_loader(dataset, std::move(options));
    epoch(loader);
    const std::uint64_t next = generator.random64();
    for (int n = 0; n < 5; ++n) {
      if (count.random64() == next) return n;
    }
    return -1;
  };
  CHECK(draws({.batch_size = 4, .shuffle = true}) == 2);
  CHECK(draws({.batch_size = 4}) == 1);
  CHECK(draws({.sampler = std::make_unique<DistributedSampler>(10, DistributedOptions{})}) == 1);
  Mt19937 generator(1), untouched(1);
  data_loader(dataset, {.shuffle = true, .generator = &generator});
  CHECK(generator.random() == untouched.random());
}

TEST_CASE("the tutorial's program's first images") {  // manual_seed(1234), partition, loader, SimpleCNN, first epoch
  const auto first = [](int size, std::size_t rank, std::size_t count) {
    const auto dataset = numbered(60000);
    const data::Subset part = data::DataPartitioner(dataset, data::equal_fractions(size)).use(rank);
    Mt19937 generator(1234);
    std::vector<float> weights(421642);
    auto loader = data_loader(part, {.batch_size = 128 / size, .shuffle = true, .generator = &generator});
    generator.uniform(weights, 0, 1);  // the model is made after the loader, one word a weight
    const Longs labels = epoch(loader)[0];
    return Longs(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(count));
  };
  CHECK(first(1, 0, 6) == Longs{48449, 25898, 824, 49676, 10817, 40530});
  CHECK(first(2, 0, 4) == Longs{8559, 23730, 7840, 1446});
  CHECK(first(2, 1, 4) == Longs{48449, 12905, 39526, 17904});
}

TEST_CASE("options of a loader that exclude each other") {
  const auto dataset = numbered(3), none = numbered(0);
  Mt19937 generator(1);
  CHECK_THROWS_WITH(data_loader(dataset, {.shuffle = true,
                                          .sampler = std::make_unique<DistributedSampler>(3, DistributedOptions{}),
                                          .generator = &generator}),
                    "sampler option is mutually exclusive with shuffle");
  CHECK_THROWS_WITH(data_loader(none, {.shuffle = true, .generator = &generator}),
                    "num_samples should be a positive integer value, but got num_samples=0");
  CHECK_THROWS_AS(data_loader(dataset, {.shuffle = true}), UsageError);
  CHECK_THROWS_AS(data_loader(dataset, {.batch_size = 0}), UsageError);
  CHECK_THROWS_AS(data_loader(dataset, {.workers = -1}), UsageError);
  CHECK_THROWS_AS(data_loader(dataset, {.prefetch = 0}), UsageError);
}

TEST_CASE("an empty data set has no batches") {
  const auto none = numbered(0);
  auto loader = data_loader(none, {.batch_size = 4, .workers = 2});
  CHECK(loader.steps() == 0);
  CHECK(epoch(loader).empty());
}
