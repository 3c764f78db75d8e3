#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/random.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet::data;
using Longs = std::vector<std::int64_t>;

namespace {

ImageDataset three_images() {  // 2 x 2 pixels, image i full of 10 i, label i
  return {from_values<std::uint8_t>({3, 1, 2, 2}, {0, 0, 0, 0, 10, 10, 10, 10, 20, 20, 20, 20}),
          from_values<std::int64_t>({3}, {0, 1, 2})};
}

/// Samples of one number, the epoch in which they are fetched; without labels.
struct Epochs : Dataset {
  std::int64_t size() const override { return 12; }
  Shape sample_shape() const override { return {1}; }
  bool has_labels() const override { return false; }
  std::uint64_t data_hash() const override { return 7; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    fetch_in_epoch(current_epoch(), indices, samples, labels);
  }
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t>, const Tensor& samples,
                      const Tensor&) const override {
    for (float& value : samples.span<float>()) value = static_cast<float>(epoch);
  }
};

/// Overrides only what a data set must have.
struct FetchOnly : Dataset {
  explicit FetchOnly(const Dataset& all) : all_(all) {}
  std::int64_t size() const override { return all_.size(); }
  Shape sample_shape() const override { return all_.sample_shape(); }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    all_.fetch(indices, samples, labels);
  }
  const Dataset& all_;
};

struct Inverted : DatasetWrapper {
  using DatasetWrapper::DatasetWrapper;
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override {
    DatasetWrapper::fetch_in_epoch(epoch, indices, samples, labels);
    for (float& value : samples.span<float>()) value = -value;
  }
};

/// Keeps its data set, and fetches from it in a fetch_in_epoch of its own that forgets the epoch.
struct Owner : FetchOnly {
  Owner() : FetchOnly(set_) {}
  void fetch_in_epoch(std::int64_t, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override {
    fetch(indices, samples, labels);
  }
  Epochs set_;
};

struct Unlabelled : DatasetWrapper {
  using DatasetWrapper::DatasetWrapper;
  bool has_labels() const override { return false; }
};

/// Says another shape than its data set writes.
struct Reshaped : DatasetWrapper {
  Reshaped(const Dataset& all, const Shape& shape) : DatasetWrapper(all), shape_(shape) {}
  Shape sample_shape() const override { return shape_; }
  Shape shape_;
};

/// What each of three epochs of a loader delivers first.
std::vector<float> first_of_epochs(const Dataset& set, int workers) {
  Loader loader(set,
                std::make_unique<samplers::Batches>(std::make_unique<samplers::SequentialSampler>(set.size()),
                                                    samplers::BatchOptions{.batch_size = 4}),
                {.workers = workers});
  std::vector<float> seen;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto& [samples, labels] : loader) {
      seen.push_back(samples.span<float>()[0]);
      break;
    }
  return seen;
}

}  // namespace

TEST_CASE("an image data set gives normalised images and labels") {
  const ImageDataset images = three_images();
  CHECK(images.size() == 3);
  CHECK(images.sample_shape() == Shape{1, 2, 2});
  const Tensor samples = empty({2, 1, 2, 2}), labels = empty({2}, DType::i64);
  images.fetch(Longs{2, 0}, samples, labels);
  CHECK(labels.data<std::int64_t>()[0] == 2);
  CHECK(labels.data<std::int64_t>()[1] == 0);
  CHECK(samples.data<float>()[3] == (20.0f / 255.0f - 0.1307f) / 0.3081f);
  CHECK(samples.data<float>()[4] == (0.0f / 255.0f - 0.1307f) / 0.3081f);
}

TEST_CASE("an image data set has a mean and deviation of its own") {
  const ImageDataset all = three_images(), other(all.images(), all.labels(), {.mean = 0.25f, .deviation = 0.5f});
  const Tensor samples = empty({1, 1, 2, 2}), labels = empty({1}, DType::i64);
  other.fetch(Longs{1}, samples, labels);
  CHECK(samples.data<float>()[0] == (10.0f / 255.0f - 0.25f) / 0.5f);
  CHECK(other.pixels().mean == 0.25f);
  CHECK(all.pixels().mean == 0.1307f);
  CHECK(all.pixels().deviation == 0.3081f);
  CHECK_THROWS_AS(ImageDataset(all.images(), all.labels(), {.mean = 0, .deviation = 0}), UsageError);
}

TEST_CASE("indices outside a data set are refused") {
  const ImageDataset images = three_images();
  const Tensor samples = empty({1, 1, 2, 2}), labels = empty({1}, DType::i64);
  CHECK_THROWS_AS(images.fetch(Longs{3}, samples, labels), DataError);
  CHECK_THROWS_AS(images.fetch(Longs{-1}, samples, labels), DataError);
  CHECK_THROWS_AS(Subset(images, {0, 3}), DataError);
}

TEST_CASE("data that does not fit together is refused") {
  const Tensor images = zeros({3, 1, 2, 2}, DType::u8), labels = zeros({2}, DType::i64);
  CHECK_THROWS_AS(ImageDataset(images, labels), DataError);
  CHECK_THROWS_AS(ImageDataset(zeros({3, 4}), zeros({3}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(TensorDataset(zeros({3, 4}), labels), DataError);
}

TEST_CASE("a subset renumbers, in pieces of any size") {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  const TensorDataset all(from_values<float>({1000, 1}, values), zeros({1000}, DType::i64));
  Longs odd, asked;
  for (std::int64_t i = 1; i < 1000; i += 2) odd.push_back(i);
  for (std::int64_t i = 499; i >= 0; --i) asked.push_back(i);
  const Subset subset(all, odd);
  CHECK(subset.size() == 500);
  const Tensor samples = empty({500, 1}), labels = empty({500}, DType::i64);
  subset.fetch(asked, samples, labels);
  bool same = true;
  for (std::size_t i = 0; i < 500; ++i) same = same && samples.span<float>()[i] == values[999 - 2 * i];
  CHECK(same);
}

TEST_CASE("RandomDataset(5, 100) is torch.randn(100, 5)") {
  const RandomDataset random(5, 100, 1234);
  CHECK(random.size() == 100);
  CHECK(random.sample_shape() == Shape{5});
  CHECK(!random.has_labels());
  std::vector<float> expected(500);
  Mt19937(1234).randn(expected);
  CHECK(std::equal(expected.begin(), expected.end(), random.samples().data<float>()));
  CHECK_THROWS_AS(RandomDataset(0, 3, 1), UsageError);
}

TEST_CASE("another set of the same size has another hash") {
  const Tensor samples = zeros({3, 4});
  const TensorDataset one(samples, from_values<std::int64_t>({3}, {0, 1, 2}));
  const TensorDataset other(samples, from_values<std::int64_t>({3}, {0, 2, 1}));
  CHECK(one.data_hash() == three_images().data_hash());
  CHECK(one.data_hash() != other.data_hash());
  CHECK(TensorDataset(samples).data_hash() == 0);  // unknown
  CHECK(Subset(one, {0, 1}).data_hash() == Subset(one, {0, 1}).data_hash());
  CHECK(Subset(one, {0, 1}).data_hash() != Subset(one, {0, 2}).data_hash());
  CHECK(Subset(one, {0, 1}).data_hash() != Subset(other, {0, 1}).data_hash());
}

TEST_CASE("a data set around another one gets its epochs") {
  const Epochs all;
  const FetchOnly plain(all), twice(plain);
  const Inverted once(all), around_plain(plain), shared(std::make_shared<Epochs>());
  const Inverted around_wrapper(static_cast<const Dataset&>(once));
  const FetchOnly plain_around(around_wrapper);
  const Subset half(once, {0, 2, 4, 6, 8, 10, 11}), third(plain_around, {1, 2, 3, 4, 5});
  const Owner owner;
  const Subset of_owner(owner, {0, 1, 2, 3, 4});
  const int workers = GENERATE(0, 2);
  struct Case {
    const Dataset& set;
    float sign;
  };
  for (const auto& [set, sign] : {Case{all, 1}, Case{plain, 1}, Case{twice, 1}, Case{once, -1}, Case{around_plain, -1},
                                  Case{shared, -1}, Case{around_wrapper, 1}, Case{plain_around, 1}, Case{half, -1},
                                  Case{third, 1}, Case{owner, 1}, Case{of_owner, 1}})
    CHECK(first_of_epochs(set, workers) == std::vector<float>{0, sign, 2 * sign});
  CHECK(Dataset::current_epoch() == 0);
}

TEST_CASE("a wrapper forwards what it doesn't override") {
  const Epochs all;
  const Inverted wrapper(all);
  CHECK(wrapper.size() == 12);
  CHECK(wrapper.sample_shape() == Shape{1});
  CHECK_FALSE(wrapper.has_labels());
  CHECK(wrapper.data_hash() == 7);
  CHECK_THROWS_AS(Inverted(std::shared_ptr<const Dataset>()), UsageError);
  static_assert(!std::is_copy_constructible_v<Inverted>);
}

TEST_CASE("a wrapper may drop labels, and its data set can't write past samples of another shape") {
  const ImageDataset images = three_images();
  const FetchOnly plain(images);
  const Unlabelled unlabelled(images), of_plain(plain);
  for (const Dataset* const set : {static_cast<const Dataset*>(&unlabelled), static_cast<const Dataset*>(&of_plain)})
    CHECK(first_of_epochs(*set, 0) == first_of_epochs(images, 0));
  const Reshaped flat(images, {4}), small(images, {1, 1, 2});
  CHECK(first_of_epochs(flat, 0) == first_of_epochs(images, 0));
  CHECK_THROWS_WITH(first_of_epochs(small, 0),
                    "samples have shape [3, 1, 1, 2], but the data set writes 3 of shape "
                    "[1, 2, 2]: a set of another sample_shape() around it must fetch into a "
                    "tensor of its own");
  CHECK_THROWS_AS(images.fetch(Longs{0}, empty({1, 1, 2, 2}), empty({2}, DType::i64)), ShapeError);
  static_assert(!std::is_constructible_v<Subset, ImageDataset, Longs>);  // it would outlive the set
}

TEST_CASE("a loader warns about a data set that promises labels and writes none") {
  const Epochs all;
  const FetchOnly forgets(all);
  const Inverted forwards(all);
  for (const auto& [set, warns] : {std::pair<const Dataset&, bool>{forgets, true}, {forwards, false}}) {
    const duet_test::Said said;
    first_of_epochs(set, 0);
    CHECK((said.text().find("warning: the data set writes no labels") != std::string::npos) == warns);
  }
}
