#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/data/images/drawn_images.h"
#include "lib/error.h"
#include "tests/data/images/samples.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::ContainsSubstring;
using Longs = std::vector<std::int64_t>;

namespace {

std::string hash_of(const Pixels& pixels) {
  return duet_test::short_hash(std::span(pixels.bytes).first(pixels.bytes.size() - Pixels::kSlack));
}

/// Of all three colours.
std::array<double, 3> mean_of(const Pixels& pixels) {
  std::array<double, 3> sums{};
  const std::size_t bytes = pixels.bytes.size() - Pixels::kSlack;
  for (std::size_t i = 0; i < bytes; ++i) sums[i % 3] += pixels.bytes[i];
  for (double& sum : sums) sum /= static_cast<double>(bytes) / 3;
  return sums;
}

}  // namespace

TEST_CASE("drawn images depend on seed and number alone, and are the same on every machine") {
  const DrawnImages images({.classes = 100, .size = 32, .count = 200, .seed = 7});
  CHECK(images.size() == 200);
  CHECK(images.sample_shape() == Shape{3, 32, 32});
  CHECK(images.label(123) == 23);
  CHECK(images.draw(3).region == Region{0, 0, 32, 32});
  CHECK(hash_of(images.draw(3)) == "3b35a3ce4c403008");
  CHECK(hash_of(images.draw(177)) == "948c33d6fca4e94a");
  CHECK(hash_of(images.draw(3)) != hash_of(images.draw(103)));
  CHECK(hash_of(images.draw(3)) != hash_of(DrawnImages({.classes = 100, .size = 32, .seed = 8}).draw(3)));
  const DrawnImages later({.classes = 100, .size = 32, .count = 10, .seed = 7, .first = 100});
  CHECK(hash_of(later.draw(3)) == hash_of(images.draw(103)));
  CHECK_THROWS_AS(images.draw(200), DataError);
}

TEST_CASE("drawn images are fetched as normalised planes") {
  const DrawnImages images({.classes = 3, .size = 16, .count = 20});
  const Tensor samples = empty({2, 3, 16, 16}), labels = empty({2}, DType::i64);
  images.fetch(Longs{4, 11}, samples, labels);
  CHECK(labels.span<std::int64_t>()[0] == 1);
  CHECK(labels.span<std::int64_t>()[1] == 2);
  const Pixels second = images.draw(11);
  bool same = true;
  for (std::size_t c = 0; c < 3; ++c) {
    const auto [mean, deviation] = kImageNetPixels[c];
    for (std::size_t i = 0; i < 256; ++i) {
      const float expected = (static_cast<float>(second.bytes[3 * i + c]) / 255.0f - mean) / deviation;
      same = same && samples.span<float>()[768 + c * 256 + i] == expected;
    }
  }
  CHECK(same);
  CHECK_THROWS_AS(images.fetch(Longs{20, 0}, samples, labels), DataError);
}

TEST_CASE("above 100 classes colours are part of a class") {
  const DrawnImages images({.classes = 1000, .size = 24, .count = 5000});
  double redder = 0;  // of hue 0 than of hue 1/3, in the mean over grounds of all colours
  for (int i = 0; i < 5; ++i) {
    for (int c = 0; c < 10; ++c) {
      const auto red = mean_of(images.draw(1000 * i + c)), green = mean_of(images.draw(1000 * i + 300 + c));
      redder += (red[0] - red[1] - green[0] + green[1]) / 50;
    }
  }
  CHECK(redder > 10);
}

TEST_CASE("drawn images out of range are refused") {
  for (const DrawnImagesOptions& wrong :
       {DrawnImagesOptions{.classes = 0}, DrawnImagesOptions{.classes = 1001}, DrawnImagesOptions{.size = 7},
        DrawnImagesOptions{.size = 5000}, DrawnImagesOptions{.count = 0}, DrawnImagesOptions{.first = -1}})
    CHECK_THROWS_AS(DrawnImages(wrong), UsageError);
}

TEST_CASE("drawn images are chosen by a text") {
  const DrawnSets plain = parse_drawn_images("synthetic");
  CHECK(plain.train.classes == 10);
  CHECK(plain.train.size == 224);
  CHECK(plain.train.count == 10'000);
  CHECK(plain.test.count == 1'000);
  CHECK(plain.train.first + plain.train.count <= plain.test.first);
  const DrawnSets sets = parse_drawn_images("synthetic:classes=100,size=64,train=5000,test=300,seed=3");
  CHECK(sets.train.classes == 100);
  CHECK(sets.test.classes == 100);
  CHECK(sets.test.size == 64);
  CHECK(sets.train.count == 5000);
  CHECK(sets.test.count == 300);
  CHECK(sets.test.seed == 3);
  for (const char* const text : {"synthetic:clases=100", "synthetic:", "synthetic:size=9,", "synthetic:=3"})
    CHECK_THROWS_WITH(parse_drawn_images(text), ContainsSubstring("have no field '"));
  for (const char* const text : {"synthetic:size=7", "synthetic:size=x", "synthetic:size", "synthetic:size=9.5"})
    CHECK_THROWS_WITH(parse_drawn_images(text), ContainsSubstring("the field 'size' of synthetic images is '"));
  CHECK_THROWS_WITH(parse_drawn_images("synthetic:size=9,size=9"),
                    ContainsSubstring("'size' of synthetic images is given twice"));
  CHECK_THROWS_WITH(parse_drawn_images("synthetics"), ContainsSubstring("got 'synthetics', expected synthetic"));
}
