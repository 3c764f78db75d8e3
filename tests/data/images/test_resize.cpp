#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/data/images/resizer.h"
#include "lib/data/images/view.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/data/files.h"
#include "tests/data/images/samples.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;

namespace {

Pixels pattern(std::int64_t width, std::int64_t height) {
  Pixels pixels;
  pixels.lay_out({0, 0, width, height});
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c)
        pixels.at(x, y)[c] = static_cast<std::uint8_t>((x * 7 + y * 13 + c * 50 + x * y % 31 * 5) & 255);
    }
  }
  return pixels;
}

/// The window of the view, of an image of which only what the view needs is there.
Bytes resized(const Pixels& image, const View& view) {
  Resizer resizer;
  const Region part = resizer.prepare(view);
  Pixels source;
  source.lay_out(part);
  for (std::int64_t y = part.y; y < part.y + part.height; ++y)
    std::copy_n(image.at(part.x, y), 3 * part.width, source.at(part.x, y));
  const std::uint8_t* const bytes = resizer.run(source);
  return {bytes, bytes + 3 * view.window.width * view.window.height};
}

}  // namespace

TEST_CASE("crops are resized to Pillow's bytes") {
  // Image.fromarray(pattern).crop(..).resize((width, height), BILINEAR).tobytes() of Pillow 13.0.0, hashed.
  struct Case {
    std::int64_t image_width, image_height;
    Region crop;
    std::int64_t width, height;
    const char* hash;
  };
  const Case cases[] = {
      {90, 70, {0, 0, 90, 70}, 64, 64, "519ca1e552b8a1db"},
      {90, 70, {11, 5, 60, 40}, 24, 24, "7a31320550c78c62"},
      {40, 200, {0, 0, 40, 200}, 32, 32, "bbc5043fe47b8587"},
      {200, 40, {3, 2, 190, 30}, 32, 16, "dab704bcea5a0851"},
      {20, 15, {2, 1, 16, 12}, 64, 50, "7ff9c257041784ad"},
      {30, 30, {0, 0, 30, 30}, 30, 30, "dde0a0c6dfc88290"},
      {33, 150, {1, 2, 30, 140}, 30, 20, "cb7ed028f1ce52e5"},
      {50, 60, {5, 5, 32, 40}, 32, 17, "c4b24bb8cd1c8f90"},
      {64, 21, {0, 0, 64, 21}, 21, 21, "a5cff81caf551f73"},
      {100, 130, {0, 0, 100, 130}, 64, 57, "c2e0e871c02af1f1"},
      {100, 130, {0, 0, 100, 130}, 64, 58, "a1c45f62eb1e43b9"},
      {100, 130, {0, 0, 100, 130}, 64, 59, "41efe10b421eefb2"},
      {300, 5, {0, 0, 300, 5}, 2, 3, "278da6a925984b24"},
  };
  for (const Case& one : cases) {
    INFO(one.crop.width << " x " << one.crop.height << " to " << one.width << " x " << one.height);
    const View view{one.crop, one.width, one.height, {0, 0, one.width, one.height}, false};
    const Pixels image = pattern(one.image_width, one.image_height);
    const Bytes whole = resized(image, view);
    CHECK(duet_test::short_hash(whole) == one.hash);

    View part = view;
    part.window = {one.width / 3, one.height / 2, one.width - one.width / 3, one.height / 4 + 1};
    const Bytes window = resized(image, part);
    bool same = true;
    for (std::int64_t y = 0; y < part.window.height; ++y) {
      const std::int64_t row = 3 * part.window.width;
      same = same && std::equal(window.begin() + y * row, window.begin() + (y + 1) * row,
                                whole.begin() + 3 * ((part.window.y + y) * one.width + part.window.x));
    }
    CHECK(same);
  }
}

TEST_CASE("vector code resizes as plain code does") {
  Philox random(3);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t in = 1 + random.below(60), out = 1 + random.below(40), other = 1 + random.below(30);
    INFO(in << " to " << out << ", " << other << " of them");
    Axis axis;
    weigh(axis, in, out, 0, out);
    Bytes from(static_cast<std::size_t>(3 * in * other) + Pixels::kSlack),
        across(static_cast<std::size_t>(3 * out * other) + Pixels::kSlack);
    for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random.below(4) == 0 ? 255 : random.below(256));
    Bytes plain = across, down = across, plain_down = across;
    resample_across(axis, {from.data() + 3 * axis.first, 3 * in}, other, across.data());
    resample_across_plain(axis, {from.data() + 3 * axis.first, 3 * in}, other, plain.data());
    resample_down(axis, {from.data() + 3 * axis.first * other, 3 * other}, 3 * other, down.data());
    resample_down_plain(axis, {from.data() + 3 * axis.first * other, 3 * other}, 3 * other, plain_down.data());
    const std::ptrdiff_t bytes = 3 * out * other;
    CHECK(std::equal(across.begin(), across.begin() + bytes, plain.begin()));
    CHECK(std::equal(down.begin(), down.begin() + bytes, plain_down.begin()));
  }
}

TEST_CASE("the middle of a resized image is torchvision's") {
  // center_crop(resize(image, resize), size) of torchvision 0.29.2, hashed.
  struct Case {
    std::int64_t image_width, image_height;
    ResizeCentreCrop transform;
    std::int64_t width, height;
    const char* hash;
  };
  const Case cases[] = {
      {500, 375, {256, 224}, 341, 256, "26f19ee397fba22d"}, {375, 500, {256, 224}, 256, 341, "93220f6bde879954"},
      {333, 500, {256, 224}, 256, 384, "fcb4b7566cfb161d"}, {256, 256, {256, 224}, 256, 256, "c0319352017c621a"},
      {17, 900, {20, 13}, 20, 1058, "66e02f1fe7119077"},    {101, 67, {32, 31}, 48, 32, "7adfdb8c104275b4"},
  };
  for (const Case& one : cases) {
    INFO(one.image_width << " x " << one.image_height);
    const View view = view_of(one.transform, one.image_width, one.image_height);
    CHECK(view.width == one.width);
    CHECK(view.height == one.height);
    CHECK(duet_test::short_hash(resized(pattern(one.image_width, one.image_height), view)) == one.hash);
  }
}

TEST_CASE("random crops are keyed by seed, epoch and image") {
  const RandomResizedCrop transform{.seed = 4};
  const View view = view_of(transform, 500, 375, 2, 7);
  CHECK(view == view_of(transform, 500, 375, 2, 7));
  CHECK(view.width == 224);
  CHECK(view.window == Region{0, 0, 224, 224});
  CHECK(view != view_of(transform, 500, 375, 3, 7));
  CHECK(view != view_of(transform, 500, 375, 2, 8));
  CHECK(view != view_of({.seed = 5}, 500, 375, 2, 7));
}

TEST_CASE("random crops have torchvision's distribution") {
  // Against the means of 60,000 draws of RandomResizedCrop.get_params of torchvision 0.29.2, to 5 standard errors.
  constexpr int kDraws = 20000;
  double area = 0, logarithm = 0, x = 0, y = 0, mirrored = 0;
  bool inside = true;
  for (int i = 0; i < kDraws; ++i) {
    const View view = view_of(RandomResizedCrop{}, 500, 375, 0, i);
    const Region& crop = view.crop;
    inside = inside && crop.x >= 0 && crop.y >= 0 && crop.x + crop.width <= 500 && crop.y + crop.height <= 375;
    area += static_cast<double>(crop.width * crop.height) / (500 * 375);
    logarithm += std::log(static_cast<double>(crop.width) / static_cast<double>(crop.height));
    x += static_cast<double>(crop.x);
    y += static_cast<double>(crop.y);
    mirrored += view.mirrored;
  }
  CHECK(inside);
  CHECK(std::abs(area / kDraws - 0.4329) < 0.009);
  CHECK(std::abs(logarithm / kDraws - 0.0308) < 0.007);
  CHECK(std::abs(x / kDraws - 108.8) < 3.3);
  CHECK(std::abs(y / kDraws - 52.4) < 2.1);
  CHECK(std::abs(mirrored / kDraws - 0.5) < 0.018);
}

TEST_CASE("random crops of extreme images are their middle") {
  const View wide = view_of(RandomResizedCrop{}, 1000, 10, 0, 0);
  CHECK(wide.crop == Region{493, 0, 13, 10});
  const View high = view_of(RandomResizedCrop{}, 10, 1000, 0, 0);
  CHECK(high.crop == Region{0, 493, 10, 13});
  CHECK(view_of(RandomResizedCrop{}, 1, 1, 0, 0).crop == Region{0, 0, 1, 1});
}

TEST_CASE("transforms with numbers that make no sense are refused") {
  CHECK_NOTHROW(check(RandomResizedCrop{}));
  CHECK_NOTHROW(check(ResizeCentreCrop{}));
  for (const RandomResizedCrop& wrong :
       {RandomResizedCrop{.size = 0}, RandomResizedCrop{.least_area = 0}, RandomResizedCrop{.most_area = 1.5},
        RandomResizedCrop{.least_area = 0.9, .most_area = 0.8}, RandomResizedCrop{.least_ratio = 2},
        RandomResizedCrop{.flip = -0.1}, RandomResizedCrop{.flip = NAN}})
    CHECK_THROWS_AS(check(wrong), UsageError);
  CHECK_THROWS_AS(check(ResizeCentreCrop{.resize = 100}), UsageError);
  CHECK_THROWS_AS(check(ResizeCentreCrop{.size = 0}), UsageError);
}
