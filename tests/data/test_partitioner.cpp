// Recorded from CPython 3.11 (the tutorial's DataPartitioner) and PyTorch's random_split.
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "lib/data/partitioner.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using Longs = std::vector<std::int64_t>;

namespace {

std::vector<std::size_t> sizes(const IndexLists& parts) {
  std::vector<std::size_t> out;
  for (const auto& part : parts) out.push_back(part.size());
  return out;
}

struct Split {
  std::vector<std::size_t> sizes;
  std::string warning;
};

Split split(std::int64_t n, const std::vector<double>& fractions, bool exact = false) {
  Split result;
  const PartitionOptions options{.exact = exact, .warn = [&](const std::string& text) { result.warning = text; }};
  result.sizes = sizes(partition_indices(n, fractions, options));
  return result;
}

}  // namespace

TEST_CASE("partitions are runs of CPython's shuffle") {
  const auto parts = partition_indices(10, std::vector<double>{0.7, 0.2, 0.1});
  REQUIRE(parts.size() == 3);
  CHECK(parts[0] == Longs{2, 8, 3, 5, 6, 4, 9});
  CHECK(parts[1] == Longs{0, 1});
  CHECK(parts[2] == Longs{7});
  CHECK(partition_indices(8, std::vector<double>{1}, {.seed = 42})[0] == Longs{3, 4, 6, 7, 2, 5, 0, 1});
}

TEST_CASE("the tutorial's two parts of MNIST") {
  const auto parts = partition_indices(60000, equal_fractions(2));
  CHECK(sizes(parts) == std::vector<std::size_t>{30000, 30000});
  CHECK(Longs(parts[0].begin(), parts[0].begin() + 5) == Longs{33712, 36159, 45528, 25849, 53734});
  CHECK(Longs(parts[1].begin(), parts[1].begin() + 3) == Longs{31044, 14995, 40895});
}

TEST_CASE("fractions are truncated in double, and lost items are counted") {
  CHECK(split(10, equal_fractions(3)).sizes == std::vector<std::size_t>{3, 3, 3});
  CHECK_THAT(split(10, equal_fractions(3)).warning, duet_test::ContainsSubstring("loses 1 item by"));
  CHECK(split(60000, equal_fractions(7)).sizes == std::vector<std::size_t>(7, 8571));
  CHECK_THAT(split(60000, equal_fractions(7)).warning, duet_test::ContainsSubstring("loses 3 items by"));
  CHECK(split(49, equal_fractions(49)).sizes == std::vector<std::size_t>(49, 0));
  CHECK_THAT(split(49, equal_fractions(49)).warning, duet_test::ContainsSubstring("loses 49 items"));
  CHECK(split(100, {.29}).sizes == std::vector<std::size_t>{28});
  CHECK(split(100, {.57}).sizes == std::vector<std::size_t>{56});
  CHECK(split(60000, equal_fractions(8)).warning.empty());
  CHECK(split(100, {.25, .25}).warning.empty());  // half of the data was never asked for
}

TEST_CASE("exact partitions lose nothing") {
  CHECK(split(10, equal_fractions(3), true).sizes == std::vector<std::size_t>{4, 3, 3});
  CHECK(split(49, equal_fractions(49), true).sizes == std::vector<std::size_t>(49, 1));
  CHECK(split(100, {.29, 0, .71}, true).sizes == std::vector<std::size_t>{29, 0, 71});
  CHECK(split(100, {.29}, true).sizes == std::vector<std::size_t>{29});
  CHECK(split(60000, equal_fractions(7), true).warning.empty());

  std::set<std::int64_t> seen;
  for (const auto& part : partition_indices(60000, equal_fractions(7), {.exact = true}))
    seen.insert(part.begin(), part.end());
  CHECK(seen.size() == 60000);
}

TEST_CASE("parts past the end are short or empty, as Python's slices are") {
  CHECK(split(10, {.8, .8, .8}).sizes == std::vector<std::size_t>{8, 2, 0});
  CHECK(split(10, {3}).sizes == std::vector<std::size_t>{10});
  CHECK(split(0, equal_fractions(2)).sizes == std::vector<std::size_t>{0, 0});
}

TEST_CASE("impossible partitions") {
  CHECK_THROWS_AS(split(-1, {1}), UsageError);
  CHECK_THROWS_AS(split(10, {-0.1}), UsageError);
  CHECK_THROWS_AS(split(10, {std::numeric_limits<double>::quiet_NaN()}), UsageError);
  CHECK_THROWS_AS(split(10, {std::numeric_limits<double>::infinity()}), UsageError);
  CHECK_THROWS_AS(equal_fractions(0), UsageError);
}

TEST_CASE("random_split of PyTorch") {
  Mt19937 generator(1234);
  const auto parts = random_split(10, Longs{7, 2, 1}, generator);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0] == Longs{5, 4, 8, 2, 6, 9, 1});
  CHECK(parts[1] == Longs{7, 0});
  CHECK(parts[2] == Longs{3});
  CHECK_THROWS_AS(random_split(10, Longs{7, 2}, generator), UsageError);
  CHECK_THROWS_AS(random_split(10, Longs{11, -1}, generator), UsageError);
}

TEST_CASE("a partitioner over any random-access range") {
  const std::string letters = "abcdefghij";
  const DataPartitioner partitioner(letters, std::vector<double>{0.7, 0.2, 0.1});
  const auto part = partitioner.use(1);
  CHECK(part.size() == 2);
  CHECK((part[0] == 'a' && part[1] == 'b'));
  CHECK_THROWS_AS(part[2], DataError);
  CHECK_THROWS_AS(partitioner.use(3), UsageError);
}

TEST_CASE("a partitioner over a data set gives subsets") {
  const TensorDataset squares(from_values<float>({10, 1}, {0, 1, 4, 9, 16, 25, 36, 49, 64, 81}));
  const DataPartitioner partitioner(squares, std::vector<double>{0.7, 0.2, 0.1});
  const Subset part = partitioner.use(2);
  CHECK(part.size() == 1);
  const Tensor sample = empty({1, 1});
  part.fetch(Longs{0}, sample, {});
  CHECK(sample.data<float>()[0] == 49);
}
