#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lib/data/loader.h"
#include "lib/error.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "samplers/sequential.h"
#include "tests/support/allocations.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using Longs = std::vector<std::int64_t>;

namespace {

/// 300 images of 28 x 28 whose labels are their numbers.
const ImageDataset& images() {
  static const ImageDataset dataset = [] {
    const Tensor pixels = empty({300, 1, 28, 28}, DType::u8), labels = empty({300}, DType::i64);
    Philox random(1);
    for (std::uint8_t& pixel : pixels.span<std::uint8_t>()) pixel = static_cast<std::uint8_t>(random.word());
    const auto numbers = labels.span<std::int64_t>();
    std::iota(numbers.begin(), numbers.end(), 0);
    return ImageDataset(pixels, labels);
  }();
  return dataset;
}

std::unique_ptr<BatchSampler> blocked(int world_size = 1, int rank = 0, std::int64_t batch = 128) {
  return std::make_unique<samplers::BlockedBatches>(
      std::make_unique<samplers::RandomSampler>(images().size(), 3),
      samplers::BlockedOptions{.global_batch = batch, .world_size = world_size, .rank = rank});
}

struct Seen {
  Longs labels;
  Rows stamp;
  std::uint64_t pixels;  // a sum that depends on the order
  bool operator==(const Seen&) const = default;
};

Seen look(const Batch& batch) {
  Seen seen{{}, batch.images.stamp(), 0};
  CHECK(batch.labels.stamp() == batch.images.stamp());
  for (const std::int64_t label : batch.labels.span<std::int64_t>()) seen.labels.push_back(label);
  for (const float value : batch.images.span<float>()) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    seen.pixels = seen.pixels * 31 + bits;
  }
  return seen;
}

std::vector<Seen> epoch(Loader& loader) {
  std::vector<Seen> all;
  for (auto& batch : loader) all.push_back(look(batch));
  return all;
}

/// Fails when sample 200 is fetched.
class Broken : public TensorDataset {
 public:
  Broken() : TensorDataset(zeros({300, 1})) {}
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    for (const std::int64_t index : indices) require<DataError>(index != 200, "sample 200 is unreadable");
    TensorDataset::fetch(indices, samples, labels);
  }
};

}  // namespace

TEST_CASE("batches are normalised images with labels and a stamp") {
  Loader loader(images(), blocked());
  CHECK(loader.steps() == 3);
  CHECK(loader.epoch() == -1);
  const auto first = epoch(loader), second = epoch(loader);
  CHECK(loader.epoch() == 1);
  REQUIRE(first.size() == 3);
  CHECK(first[0].stamp == Rows{0, 0, 128});
  CHECK(first[2].stamp == Rows{2, 0, 44});
  CHECK(second[0].stamp == Rows{3, 0, 128});  // steps are counted over all epochs
  CHECK(first[0].labels != second[0].labels);
  CHECK(first[0].labels == [] {
    const auto order = Mt19937(3).randperm(300);
    return Longs(order.begin(), order.begin() + 128);
  }());
}

TEST_CASE("order and content do not depend on the workers") {
  const int prefetch = GENERATE(1, 2, 7);
  Loader plain(images(), blocked());
  Loader one(images(), blocked(), {.workers = 1, .prefetch = prefetch});
  Loader many(images(), blocked(), {.workers = 5, .prefetch = prefetch});
  for (int i = 0; i < 3; ++i) {
    const auto expected = epoch(plain);
    CHECK(epoch(one) == expected);
    CHECK(epoch(many) == expected);
  }
}

TEST_CASE("an iterator skips batches, whatever the number of workers") {
  Loader plain(images(), blocked());
  const auto all = epoch(plain);
  Loader loader(images(), blocked(), {.workers = GENERATE(0, 1, 3)});
  auto batch = loader.begin();
  batch += 2;
  CHECK(look(*batch) == all[2]);
  batch += 2;
  CHECK(batch == loader.end());
}

TEST_CASE("ranks read their rows of the same global batches") {
  Loader whole(images(), blocked());
  Loader left(images(), blocked(2, 0)), right(images(), blocked(2, 1), {.workers = 2});
  const auto all = epoch(whole), lower = epoch(left), upper = epoch(right);
  for (std::size_t step = 0; step < all.size(); ++step) {
    Longs joined = lower[step].labels;
    CHECK(upper[step].stamp == Rows{static_cast<std::int64_t>(step), std::ssize(joined), all[step].stamp.global, 2,
                                    lower[step].stamp.order});
    CHECK(upper[step].stamp.order != 0);
    CHECK(all[step].stamp.order == 0);
    joined.insert(joined.end(), upper[step].labels.begin(), upper[step].labels.end());
    CHECK(joined == all[step].labels);
  }
}

TEST_CASE("a rank with no rows in a step gets an empty batch") {
  const TensorDataset two(zeros({2, 5}));
  Loader loader(two, std::make_unique<samplers::BlockedBatches>(
                         std::make_unique<samplers::SequentialSampler>(2),
                         samplers::BlockedOptions{.global_batch = 8, .world_size = 4, .rank = 0}));
  int steps = 0;
  for (auto& [samples, labels] : loader) {
    CHECK(samples.shape() == Shape{0, 5});
    CHECK(samples.stamp() == Rows{0, 0, 2, 4, loader.stamp().order});
    CHECK(!labels.defined());
    ++steps;
  }
  CHECK(steps == 1);
}

TEST_CASE("a loader that starts in the middle goes on as an uninterrupted one") {
  const int workers = GENERATE(0, 2);
  Loader whole(images(), blocked());
  epoch(whole);
  const auto second = epoch(whole), third = epoch(whole);
  Loader resumed(images(), blocked(), {.workers = workers});
  resumed.set_position({1, 2});
  CHECK(epoch(resumed) == std::vector<Seen>(second.begin() + 2, second.end()));
  CHECK(epoch(resumed) == third);
  resumed.set_position({1, 3});  // the end of an epoch
  CHECK(epoch(resumed).empty());
  CHECK(epoch(resumed) == third);
  CHECK_THROWS_AS(resumed.set_position({0, 4}), UsageError);
  CHECK_THROWS_AS(resumed.set_position({-1, 0}), UsageError);
}

TEST_CASE("a position that a loader gives at any point brings another one to the same place") {
  const int workers = GENERATE(0, 3);
  std::vector<Seen> whole;
  std::vector<Position> behind;  // each of the batches
  Loader loader(images(), blocked(), {.workers = workers});
  CHECK(loader.position() == Position{0, 0});
  for (std::int64_t number = 0; number < 2; ++number) {
    for (const auto& batch : loader) {
      whole.push_back(look(batch));
      behind.push_back(loader.position());
    }
    CHECK(loader.position() == Position{number + 1, 0});
  }
  CHECK(behind == std::vector<Position>{{0, 1}, {0, 2}, {0, 3}, {1, 1}, {1, 2}, {1, 3}});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Loader other(images(), blocked(), {.workers = 3 - workers});
    other.set_position(behind[i]);
    CHECK(other.position() == behind[i]);
    std::vector<Seen> rest;
    while (other.position().epoch < 2)
      for (const auto& batch : other) rest.push_back(look(batch));
    CHECK(rest == std::vector<Seen>(whole.begin() + static_cast<std::ptrdiff_t>(i) + 1, whole.end()));
  }
}

TEST_CASE("a position within an epoch is one of batches of its size") {
  Loader loader(images(), blocked()), other(images(), blocked(1, 0, 100)), shared(images(), blocked(2, 1));
  for ([[maybe_unused]] const auto& batch : loader) break;
  other.set_position(loader.position());
  CHECK_THROWS_WITH(other.begin(),
                    duet_test::ContainsSubstring("the loader's global batch has 100 rows, but the position "
                                                 "after 1 steps of epoch 0 counts batches of 128"));
  shared.set_position(loader.position());
  CHECK_NOTHROW(shared.begin());
  other.set_position({.epoch = 1, .batch = 128});
  CHECK_NOTHROW(other.begin());
}

TEST_CASE("a break and a batch that cannot be read keep the position") {
  const int workers = GENERATE(0, 2);
  Loader loader(images(), blocked(), {.workers = workers});
  for ([[maybe_unused]] const auto& batch : loader) break;
  CHECK(loader.position() == Position{0, 1});
  loader.set_position({4, 2});
  CHECK(loader.position() == Position{4, 2});
  CHECK(loader.epoch() == 0);
  for ([[maybe_unused]] const auto& batch : loader) CHECK(loader.position() == Position{4, 3});
  CHECK(loader.position() == Position{5, 0});

  const Broken broken;
  Loader failing(broken, blocked(), {.workers = workers});
  std::int64_t got = 0;
  const auto pass = [&] {
    for ([[maybe_unused]] const auto& batch : failing) ++got;
  };
  CHECK_THROWS_AS(pass(), DataError);
  CHECK(failing.position() == Position{0, got});
  CHECK_THROWS_AS(failing.batch(), UsageError);
}

TEST_CASE("after a break the next pass is the next epoch") {
  const int workers = GENERATE(0, 2);
  Loader whole(images(), blocked()), broken_off(images(), blocked(), {.workers = workers});
  epoch(whole);
  for (auto& batch : broken_off) {
    static_cast<void>(batch);
    break;
  }
  CHECK(epoch(broken_off) == epoch(whole));
}

TEST_CASE("a pass within a pass over the same loader is refused") {
  Loader loader(images(), blocked());
  const auto nested = [&] {
    for ([[maybe_unused]] const auto& outer : loader)
      for ([[maybe_unused]] const auto& inner : loader) break;
  };
  CHECK_THROWS_WITH(nested(),
                    "a pass over the loader begins within another one, at step 0 of 3, whose batches it would "
                    "take: use a loader for each, or set_position()");
  CHECK(epoch(loader).size() == 3);  // the one that threw has ended
  auto at = loader.begin();
  CHECK_THROWS_AS(loader.begin(), UsageError);
  loader.set_position({7, 1});
  at = loader.begin();
  CHECK(loader.epoch() == 7);
  while (at != loader.end()) ++at;
  loader.begin();
  CHECK(loader.epoch() == 8);
}

TEST_CASE("a batch that is kept is not written again") {
  Loader loader(images(), blocked());
  std::vector<Batch> kept;
  for (auto& batch : loader) kept.push_back(batch);
  Loader again(images(), blocked());
  std::vector<Seen> seen;
  for (const Batch& batch : kept) seen.push_back(look(batch));
  CHECK(seen == epoch(again));
}

TEST_CASE("an exception reaches the caller in the step in which its batch was due") {
  const int workers = GENERATE(0, 3);
  const Broken broken;
  Loader loader(broken,
                std::make_unique<samplers::Batches>(std::make_unique<samplers::SequentialSampler>(300),
                                                    samplers::BatchOptions{.batch_size = 32}),
                {.workers = workers});
  int steps = 0;
  const auto run = [&] {
    for (auto& batch : loader) steps += batch.images.size(0) > 0;
  };
  CHECK_THROWS_WITH(run(), "sample 200 is unreadable");
  CHECK(steps == 6);
}

TEST_CASE("a steady epoch allocates nothing") {
  Loader loader(images(), blocked());
  std::int64_t rows = 0;
  const auto pass = [&] {
    for (auto& [samples, labels] : loader) rows += samples.size(0) + labels.size(0);
  };
  pass();
  long own = 0;
  std::string where;
  {
    const duet_test::CountAllocations count;
    pass();
    own = count.own();
    where = count.first_own();
  }
  INFO(where);
  CHECK(own == 0);
  CHECK(rows == 1200);
}
