#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/data/files.h"
#include "tests/data/images/samples.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;
using duet_test::ContainsSubstring;
using duet_test::image_samples;

namespace {

Pixels decoded(const Bytes& content, std::int64_t most_pixels = kMostPixels) {
  const auto file = ImageFile::open(content, "a.jpg", most_pixels);
  Pixels pixels;
  file->read({0, 0, file->width(), file->height()}, pixels);
  return pixels;
}

/// A picture with edges and noise in all colours.
Pixels drawn(std::int64_t width, std::int64_t height) {
  Pixels pixels;
  pixels.lay_out({0, 0, width, height});
  Philox random(5);
  for (std::int64_t i = 0; i < 3 * width * height; ++i) {
    const std::int64_t x = i / 3 % width, y = i / 3 / width;
    const std::int64_t flat = (x / 9 + y / 7 + i % 3) % 2 * 180;
    pixels.bytes[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(flat + static_cast<std::int64_t>(random.below(70)));
  }
  return pixels;
}

bool same(const Pixels& part, const Pixels& whole, const Region& wanted) {
  for (std::int64_t y = wanted.y; y < wanted.y + wanted.height; ++y) {
    const std::uint8_t* const row = part.at(wanted.x, y);
    if (!std::equal(row, row + 3 * wanted.width, whole.at(wanted.x, y))) return false;
  }
  return true;
}

/// Whether it can be read; anything but a DataError ends the test.
bool readable(const Bytes& content) {
  try {
    decoded(content, 1 << 16);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

DUET_TEST_UNLESS(duet_test::why_no_images(), "images of all kinds have Pillow's pixels") {
  for (const auto& sample : image_samples()) {
    INFO(sample.name);
    const Bytes content = sample.content();
    const Pixels pixels = decoded(content);
    CHECK(pixels.region == Region{0, 0, sample.width, sample.height});
    const std::size_t bytes = 3 * static_cast<std::size_t>(sample.width * sample.height);
    CHECK(duet_test::short_hash(std::span(pixels.bytes).first(bytes)) == sample.hash);
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "a part of a JPEG has the pixels of the whole") {
  const Bytes content = encode_jpeg(drawn(157, 131), 80);
  const Pixels whole = decoded(content);
  Philox random(1);
  const auto begin_and_size = [&](std::uint32_t all) {
    const std::uint32_t begin = random.below(all);
    return std::pair(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(1 + random.below(all - begin)));
  };
  Pixels part;
  for (int i = 0; i < 60; ++i) {
    const auto across = begin_and_size(157), down = begin_and_size(131);
    const Region wanted{across.first, down.first, across.second, down.second};
    INFO(wanted.x << ' ' << wanted.y << ' ' << wanted.width << ' ' << wanted.height);
    ImageFile::open(content, "a")->read(wanted, part);
    CHECK(same(part, whole, wanted));
  }
  for (const auto& sample : image_samples()) {
    INFO(sample.name);
    const Bytes bytes = sample.content();
    const Region wanted{sample.width / 4, sample.height / 2, sample.width / 2, sample.height / 2};
    ImageFile::open(bytes, "a")->read(wanted, part);
    CHECK(same(part, decoded(bytes), wanted));
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "a JPEG is read at a half, a quarter, an eighth") {
  Pixels grey = drawn(157, 131);
  std::fill(grey.bytes.begin(), grey.bytes.end(), std::uint8_t{90});
  const Bytes content = encode_jpeg(grey);
  for (const int divisor : {1, 2, 4, 8}) {
    const auto file = ImageFile::open(content, "a");
    CHECK(file->shrink(divisor) == divisor);
    CHECK(file->width() == (157 + divisor - 1) / divisor);
    CHECK(file->height() == (131 + divisor - 1) / divisor);
    Pixels pixels;
    file->read({3, 2, 15, 10}, pixels);
    CHECK(std::abs(*pixels.at(17, 11) - 90) <= 1);
  }
  CHECK_THROWS_AS(ImageFile::open(content, "a")->shrink(3), UsageError);
  const Bytes png = image_samples().back().content();
  CHECK(ImageFile::open(png, "a")->shrink(4) == 1);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "cut images are errors that name the file") {
  for (const auto& sample : image_samples()) {
    const Bytes whole = sample.content();
    for (std::size_t size = 0; size < whole.size(); size += 1 + size / 40) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      INFO(sample.name << " cut to " << size << " of " << whole.size());
      if (size + 24 < whole.size())  // of what follows the last pixel nothing is missed
        CHECK_THROWS_WITH(decoded(cut), ContainsSubstring("a.jpg: "));
      else
        readable(cut);
    }
  }
  // Also where the cut lies behind what is asked for.
  const Bytes whole = encode_jpeg(drawn(100, 200));
  const Bytes cut(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(whole.size() / 4));
  Pixels part;
  CHECK_THROWS_WITH(ImageFile::open(cut, "b.jpeg")->read({0, 0, 100, 16}, part), ContainsSubstring("b.jpeg: "));
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "damaged images are read or refused") {
  Philox random(7);
  int refused = 0;
  for (const auto& sample : image_samples()) {
    for (int i = 0; i < 60; ++i) {
      Bytes content = sample.content();
      for (std::uint32_t flips = 1 + random.below(4); flips > 0; --flips)
        content[random.below(static_cast<std::uint32_t>(content.size()))] ^=
            static_cast<std::uint8_t>(1 + random.below(255));
      refused += !readable(content);
    }
  }
  CHECK(refused > 200);
}

TEST_CASE("what is no image, or is too large, is refused") {
  CHECK_THROWS_WITH(ImageFile::open({}, "a.jpg"), "a.jpg: is empty, expected a JPEG or PNG image");
  const Bytes gif = {'G', 'I', 'F', '8', '9', 'a'};
  CHECK_THROWS_WITH(
      ImageFile::open(gif, "a.jpg"),
      "a.jpg: is neither a JPEG nor a PNG image: it begins with the bytes 474946383961 and is a GIF image");
  if (!has_image_codecs()) DUET_SKIP("built without images");
  for (const std::size_t which : {std::size_t{0}, image_samples().size() - 1}) {
    const Bytes content = image_samples()[which].content();
    CHECK_THROWS_WITH(decoded(content, 21 * 13 - 1), "a.jpg: has 21 x 13 pixels, expected 1 to 272 in all");
    CHECK(decoded(content, 21 * 13).region.width == 21);
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "a JPEG that is written can be read") {
  Pixels pixels = drawn(40, 30);
  for (std::size_t i = 0; i < pixels.bytes.size(); ++i) pixels.bytes[i] = static_cast<std::uint8_t>(i / 3 % 40 * 5);
  const Pixels back = decoded(encode_jpeg(pixels, 95));
  REQUIRE(back.region == pixels.region);
  int worst = 0;
  for (std::size_t i = 0; i < 3 * 40 * 30; ++i) worst = std::max(worst, std::abs(back.bytes[i] - pixels.bytes[i]));
  CHECK(worst < 8);
  CHECK_THROWS_AS(encode_jpeg(pixels, 101), UsageError);
  pixels.region.height = 0;
  CHECK_THROWS_AS(encode_jpeg(pixels), DataError);
}

TEST_CASE("images are read from regular files") {
  const duet_test::TemporaryFolder folder;
  CHECK_THROWS_WITH(read_image(folder / "absent.png"), ContainsSubstring("absent.png"));
  CHECK_THROWS_WITH(read_image(folder.path()), ContainsSubstring(folder.path().string()));
  REQUIRE(::mkfifo((folder / "pipe.jpg").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_image(folder / "pipe.jpg"), ContainsSubstring("pipe.jpg"));
  duet_test::write_file(folder / "empty.png", {});
  CHECK_THROWS_WITH(read_image(folder / "empty.png"), ContainsSubstring("empty.png: is empty"));
  if (!has_image_codecs()) DUET_SKIP("built without images");
  duet_test::write_file(folder / "a.jpg", image_samples().back().content());  // a PNG
  CHECK(read_image(folder / "a.jpg").region.width == 21);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "an image file tells what its pixels lose") {
  for (const duet_test::ImageSample& sample : duet_test::image_samples()) {
    const std::string name = sample.name;
    CAPTURE(name);
    const auto has = [&](const char* words) { return name.find(words) != std::string::npos; };
    unsigned expected = 0;
    if (has("CMYK")) expected = ImageFile::kInks;
    if (has("16-bit")) expected = has("16-bit grey PNG") ? ImageFile::kWideGrey : ImageFile::kWideColour;
    if (has("alpha") || has("transparent") || has("4-bit palette")) expected |= ImageFile::kAlpha;
    duet_test::Bytes content = sample.content();
    CHECK(ImageFile::losses_of(content) == expected);
    const bool jpeg = content[0] == 0xff;
    for (const int orientation : {1, 2, 6, 8}) {
      for (const int form : {0, 1, 2, 3}) {  // byte order, and a number of two or four bytes
        const bool big = form % 2 == 1, wide = form > 1;
        const std::uint8_t type = wide ? 4 : 3;
        duet_test::Bytes exif =
            big ? duet_test::Bytes{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 18, 0, type, 0, 0, 0, 1, 0, 0, 0, 0}
                : duet_test::Bytes{'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 18, 1, type, 0, 1, 0, 0, 0, 0, 0, 0, 0};
        exif[big ? (wide ? 21 : 19) : 18] = static_cast<std::uint8_t>(orientation);
        duet_test::Bytes part = jpeg ? duet_test::Bytes{0xff, 0xe1, 0, 30, 'E', 'x', 'i', 'f', 0, 0}
                                     : duet_test::Bytes{0, 0, 0, 22, 'e', 'X', 'I', 'f'};
        part.insert(part.end(), exif.begin(), exif.end());
        if (!jpeg) part.resize(part.size() + 4);  // a checksum, which nobody reads
        duet_test::Bytes tagged = content;
        tagged.insert(tagged.begin() + (jpeg ? 2 : 33), part.begin(), part.end());
        CHECK(ImageFile::losses_of(tagged) == (orientation > 1 ? expected | ImageFile::kOrientation : expected));
      }
    }
  }
}
