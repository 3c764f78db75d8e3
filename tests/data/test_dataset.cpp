#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lib/data/dataset.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using Longs = std::vector<std::int64_t>;

namespace {

ImageDataset three_images() {  // 2 x 2 pixels, image i full of 10 i, label i
  return {from_values<std::uint8_t>({3, 1, 2, 2}, {0, 0, 0, 0, 10, 10, 10, 10, 20, 20, 20, 20}),
          from_values<std::int64_t>({3}, {0, 1, 2})};
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
