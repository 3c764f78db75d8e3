#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/data/images/image_folder.h"
#include "lib/data/images/resizer.h"
#include "lib/data/loader.h"
#include "lib/error.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"
#include "tests/data/files.h"
#include "tests/data/images/samples.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"
#include "tests/support/variable.h"

using namespace duet;
using namespace duet::data;
using duet_test::ContainsSubstring;
using duet_test::TemporaryFolder;
namespace fs = std::filesystem;
using Longs = std::vector<std::int64_t>;

namespace {

constexpr ResizeCentreCrop kSmall{.resize = 10, .size = 8};

/// A small image, another one for every number.
void put(const fs::path& path, int number) {
  fs::create_directories(path.parent_path());
  const auto samples = duet_test::image_samples();
  duet_test::write_file(path, samples[static_cast<std::size_t>(number) % samples.size()].content());
}

std::vector<std::string> names(const ImageFolder& images, const fs::path& root) {
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < images.size(); ++i)
    all.push_back(std::to_string(images.label(i)) + ' ' + images.path(i).lexically_relative(root).string());
  return all;
}

struct Fetched {
  std::vector<float> values;
  Longs labels;
  bool operator==(const Fetched&) const = default;
};

Fetched fetched(const Dataset& set, const Longs& indices, std::int64_t epoch = 0) {
  const auto n = static_cast<std::int64_t>(indices.size());
  Shape shape{n};
  for (const std::int64_t size : set.sample_shape()) shape.append(size);
  const Tensor samples = empty(shape), labels = empty({n}, DType::i64);
  set.fetch_in_epoch(epoch, indices, samples, labels);
  const auto values = samples.span<float>();
  const auto numbers = labels.span<std::int64_t>();
  return {{values.begin(), values.end()}, {numbers.begin(), numbers.end()}};
}

/// A folder of three classes of four images.
struct Classes : TemporaryFolder {
  Classes() {
    for (int i = 0; i < 12; ++i)
      put(*this / (std::string(1, static_cast<char>('a' + i / 4)) + '/' + std::to_string(i) + ".png"), i);
  }
};

}  // namespace

DUET_TEST_UNLESS(duet_test::why_no_images(), "folders are classes, in torchvision's order of samples") {
  const TemporaryFolder root, elsewhere;
  for (const char* const name : {"b/2.JPG", "b/10.png", "b/sub/1.jpeg", "b/sub-1/0.png", "b/sub/deep/x.webp",
                                 "B/z.tiff", "-c/a.bmp", "not-a-class.jpg", "b/.jpg"})
    put(root / name, 0);
  duet_test::write_file(root / "b/notes.txt", {});
  duet_test::write_file(root / "b/jpg", {});
  put(elsewhere / "far/y.ppm", 0);
  fs::create_directory_symlink(elsewhere / "far", root / "linked");
  const ImageFolder images(root.path());
  CHECK(images.classes() == std::vector<std::string>{"-c", "B", "b", "linked"});
  // As torchvision 0.29.2 lists this folder.
  CHECK(names(images, root.path()) == std::vector<std::string>{"0 -c/a.bmp", "1 B/z.tiff", "2 b/.jpg", "2 b/10.png",
                                                               "2 b/2.JPG", "2 b/sub/1.jpeg", "2 b/sub-1/0.png",
                                                               "2 b/sub/deep/x.webp", "3 linked/y.ppm"});
  CHECK(images.size() == 9);
  CHECK(images.sample_shape() == Shape{3, 224, 224});
  fs::create_symlink(elsewhere / "gone.png", root / "linked/gone.pgm");
  CHECK_THROWS_WITH(ImageFolder(root.path()), ContainsSubstring("linked/gone.pgm: is a link that leads nowhere"));
}

TEST_CASE("folders that hold no classes of images are errors that name them") {
  const TemporaryFolder root;
  if (!has_image_codecs()) {
    CHECK_THROWS_WITH(ImageFolder(root.path()), ContainsSubstring("built without images"));
    return;
  }
  CHECK_THROWS_WITH(ImageFolder(root / "absent"), ContainsSubstring("absent: is not a folder"));
  CHECK_THROWS_WITH(ImageFolder(root.path()), ContainsSubstring(root.path().string() + ": has no folders"));
  put(root / "a/1.png", 0);
  fs::create_directories(root / "x/inner");
  fs::create_directories(root / "y");
  CHECK_THROWS_WITH(ImageFolder(root.path()), ContainsSubstring("no images in the classes x and y; expected"));
  put(root / "x/inner/1.png", 0);
  put(root / "y/1.png", 0);
  CHECK(ImageFolder(root.path()).size() == 3);
  fs::create_directory_symlink("..", root / "x/inner/loop");
  CHECK_THROWS_WITH(ImageFolder(root.path()), ContainsSubstring("x/inner/loop: is a link to a folder that it lies in"));
  CHECK_THROWS_AS(ImageFolder(root.path(), {.transform = ResizeCentreCrop{.size = 300}}), UsageError);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "samples are normalised views, as planes") {
  const Classes root;
  const ImageFolder images(root.path(), {.transform = kSmall});
  const Fetched got = fetched(images, {5, 0});
  CHECK(got.labels == Longs{1, 0});
  const Pixels whole = read_image(images.path(0));
  Resizer resizer;
  resizer.prepare(view_of(kSmall, whole.region.width, whole.region.height));
  const std::uint8_t* const bytes = resizer.run(whole);
  bool same = true;
  for (std::size_t i = 0; i < 64; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      const auto [mean, deviation] = kImageNetPixels[c];
      const float expected = (static_cast<float>(bytes[3 * i + c]) / 255.0f - mean) / deviation;
      same = same && got.values[192 + c * 64 + i] == expected;
    }
  }
  CHECK(same);
  CHECK_THROWS_AS(fetched(images, {12}), DataError);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "images are mirrored, all or none") {
  const Classes root;
  RandomResizedCrop crop{.size = 9, .flip = 0};
  const Fetched plain = fetched(ImageFolder(root.path(), {.transform = crop}), {3, 9});
  crop.flip = 1;
  Fetched mirrored = fetched(ImageFolder(root.path(), {.transform = crop}), {3, 9});
  CHECK(mirrored != plain);
  for (std::size_t row = 0; row < mirrored.values.size(); row += 9)
    std::reverse(mirrored.values.begin() + static_cast<std::ptrdiff_t>(row),
                 mirrored.values.begin() + static_cast<std::ptrdiff_t>(row + 9));
  CHECK(mirrored == plain);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "random crops change with the epoch, and with nothing else") {
  const Classes root;
  const ImageFolder images(root.path(), {.transform = RandomResizedCrop{.size = 8, .seed = 3}});
  const Fetched first = fetched(images, {0, 1, 2, 3, 4});
  CHECK(first == fetched(images, {0, 1, 2, 3, 4}, 0));
  CHECK(first.values != fetched(images, {0, 1, 2, 3, 4}, 1).values);
  const Fetched alone = fetched(Subset(images, {3, 4}), {1}, 0);
  CHECK(std::equal(alone.values.begin(), alone.values.end(), first.values.end() - 192));
  CHECK(fetched(Subset(images, {3, 4}), {1}, 1) == fetched(images, {4}, 1));

  // Through the loader, with any number of workers.
  const auto epochs = [&](int workers) {
    Loader loader(images,
                  std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::SequentialSampler>(12),
                                                             samplers::BlockedOptions{.global_batch = 5}),
                  {.workers = workers});
    std::vector<std::vector<float>> all;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const Batch& batch : loader) {
        const auto values = batch.images.span<float>();
        all.emplace_back(values.begin(), values.end());
      }
    }
    return all;
  };
  const auto expected = epochs(0);
  REQUIRE(expected.size() == 6);
  CHECK(expected[0] == first.values);
  CHECK(expected[3] == fetched(images, {0, 1, 2, 3, 4}, 1).values);
  CHECK(epochs(1) == expected);
  CHECK(epochs(3) == expected);
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "broken images are errors, or skipped, named and counted") {
  const Classes root;
  const auto cut = [&](const std::string& name) {
    duet_test::Bytes content = duet_test::read_file(root / name);
    content.resize(content.size() / 2);
    duet_test::write_file(root / name, content);
  };
  cut("b/6.png");  // number 2 of class b: 4, 5, 6, 7
  cut("b/7.png");
  const Longs all = {0, 5, 6, 7};
  CHECK_THROWS_WITH(fetched(ImageFolder(root.path(), {.transform = kSmall}), all), ContainsSubstring("b/6.png: "));

  std::vector<std::string> said;
  const ImageFolder* folder = nullptr;
  const auto warn = [&](const std::string& message) {
    said.push_back(message);
    CHECK(folder->broken().size() == said.size());  // may be called here
  };
  const ImageFolder images(root.path(), {.transform = kSmall, .skip_broken = true, .warn = warn});
  folder = &images;
  const Fetched expected = fetched(images, {0, 5, 4, 4});
  CHECK(images.broken().empty());
  CHECK(fetched(images, all) == expected);
  CHECK(fetched(images, {7, 6}).labels == Longs{1, 1});
  REQUIRE(said.size() == 2);
  CHECK(images.broken() == said);
  CHECK_THAT(said[0], ContainsSubstring("b/6.png: "));
  CHECK_THAT(said[1], ContainsSubstring("b/7.png: "));

  cut("b/4.png");
  cut("b/5.png");
  CHECK_THROWS_WITH(fetched(images, {4}), ContainsSubstring("/b: all 4 images of this class are broken"));
  // A file that is gone is not a broken image: other ranks may still see it.
  fs::remove(root / "a/0.png");
  CHECK_THROWS_WITH(fetched(images, {0}), ContainsSubstring("a/0.png"));
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "files of formats that are not read are counted and named at once") {
  const Classes root;
  put(root / "c/jpeg-inside.webp", 0);
  CHECK_NOTHROW(ImageFolder(root.path(), {.transform = kSmall}));
  for (const char* const name : {"a/1.bmp", "b/2.WEBP", "b/3.tiff"}) duet_test::write_file(root / name, {'B', 'M', 0});
  const std::string found = ": 3 files are neither JPEG nor PNG images, the first is " + (root / "a/1.bmp").string();
  CHECK_THROWS_WITH(ImageFolder(root.path(), {.transform = kSmall}), ContainsSubstring(found));
  std::vector<std::string> said;
  const auto warn = [&](const std::string& message) { said.push_back(message); };
  const ImageFolder images(root.path(), {.transform = kSmall, .skip_broken = true, .warn = warn});
  CHECK(images.broken().size() == 3);
  Longs all(static_cast<std::size_t>(images.size()));
  std::iota(all.begin(), all.end(), 0);
  CHECK_NOTHROW(fetched(images, all));
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], ContainsSubstring(found));
}

DUET_TEST_UNLESS(duet_test::why_no_images(),
                 "a file that is no image is found when the folder is listed, whatever its name") {
  const Classes root;
  const std::pair<duet_test::Bytes, const char*> cases[] = {{{0, 5, 22, 7, 0, 2, 0, 0}, ": metadata of macOS"},
                                                            {{}, "/._0.png"},
                                                            {{'<', 'h', 't', 'm', 'l', '>'}, ": an HTML page"}};
  for (const auto& [content, words] : cases) {
    duet_test::write_file(root / "b/._0.png", content);
    CHECK_THROWS_WITH(ImageFolder(root.path()),
                      ContainsSubstring("1 file is neither a JPEG nor a PNG image") && ContainsSubstring(words));
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "hidden folders are no classes, and hold no samples") {
  const Classes root, other;
  const std::vector<std::string> expected = names(ImageFolder(root.path()), root.path());
  for (const char* const name :
       {".ipynb_checkpoints/0.png", "__MACOSX/0.png", "a/0.GIF", "a/x/1.jfif", "b/.git/0.png", "c/x/@eaDir/0.png"})
    put(root / name, 0);
  const duet_test::Said said;
  const ImageFolder images(root.path());
  CHECK(names(images, root.path()) == expected);
  CHECK_THAT(said.text(),
             ContainsSubstring("leaves out .ipynb_checkpoints, __MACOSX, a/0.GIF, a/x/1.jfif and 2 more: directories"));
  put(other / "d/0.png", 0);
  fs::remove_all(other / "a");
  CHECK_THROWS_WITH(
      require_same_classes("D", images, ImageFolder(other.path())),
      "D: train has 3 classes and val 3, expected the same directories in both; only train has a; only val has d");
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "a sample that a folder does not have is an error") {
  const Classes root;
  const ImageFolder images(root.path(), {.transform = kSmall});
  for (const std::int64_t index : {std::int64_t{-1}, std::int64_t{12}}) {
    CAPTURE(index);
    CHECK_THROWS_WITH(images.path(index), concat("sample ", index, " asked of a data set of 12 samples"));
    CHECK_THROWS_AS(images.label(index), DataError);
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "large images are decoded at a smaller scale if that is wanted") {
  const TemporaryFolder root;
  Pixels pixels;
  pixels.lay_out({0, 0, 200, 160});
  for (std::int64_t y = 0; y < 160; ++y) {
    for (std::int64_t x = 0; x < 200; ++x) std::fill_n(pixels.at(x, y), 3, static_cast<std::uint8_t>(x / 2 + y));
  }
  fs::create_directories(root / "a");
  duet_test::write_file(root / "a/1.jpg", encode_jpeg(pixels));
  put(root / "a/2.png", 18);
  ImageFolderOptions options{.transform = ResizeCentreCrop{.resize = 30, .size = 24}};
  const Fetched exact = fetched(ImageFolder(root.path(), options), {0, 1});
  options.scaled_decoding = true;
  const Fetched scaled = fetched(ImageFolder(root.path(), options), {0, 1});
  CHECK(scaled != exact);
  float worst = 0;
  for (std::size_t i = 0; i < exact.values.size(); ++i)
    worst = std::max(worst, std::abs(scaled.values[i] - exact.values[i]));
  CHECK(worst < 0.1f);  // 6 of 255
  CHECK(std::equal(scaled.values.begin() + 3 * 24 * 24, scaled.values.end(), exact.values.begin() + 3 * 24 * 24));
}

DUET_TEST_UNLESS(duet_test::why_no_images(), "random crops of another epoch than the loader's are warned about once") {
  const Classes root;
  const ImageFolder random(root.path(), {.transform = RandomResizedCrop{.size = 8}}),
      fixed(root.path(), {.transform = kSmall});
  const duet_test::Said said;
  const EpochScope scope(2);
  fetched(random, {0}, 2);
  for (const ImageFolder* const set : {&random, &fixed})
    for (const std::int64_t index : {0, 1}) fetched(*set, {index});
  CHECK_THAT(said.text(), ContainsSubstring("the loader is in epoch 2, but a data set between"));
  CHECK(said.lines() == 1);
}

DUET_TEST_UNLESS(duet_test::why_no_images(),
                 "images that lose something are counted when the folder is listed, by rank 0") {
  const TemporaryFolder root;
  const auto samples = duet_test::image_samples();
  Longs all(samples.size());
  std::iota(all.begin(), all.end(), 0);
  for (const std::int64_t i : all) put(root / ("a/" + std::to_string(i) + ".png"), static_cast<int>(i));
  for (const char* const rank : {"", "1", "0"}) {
    const duet_test::Variable variable("RANK", rank);
    const duet_test::Said said;
    const ImageFolder images(root.path(), {.transform = kSmall});
    if (rank != std::string("1"))
      for (const char* const words : {"16-bit grey", "16-bit values", "transparency", "CMYK"})
        CHECK_THAT(said.text(), ContainsSubstring(words));
    for (int epoch = 0; epoch < 2; ++epoch) fetched(images, all, epoch);
    CHECK(said.lines() == (rank == std::string("1") ? 0 : 4));
    CHECK_THAT(said.text(), !ContainsSubstring(" 0 of "));
  }
}

DUET_TEST_UNLESS(duet_test::why_no_images(),
                 "an image warns when it is read of a loss that its first bytes don't show") {
  const TemporaryFolder root;
  for (const auto& sample : duet_test::image_samples()) {
    if (sample.name != std::string("colour PNG with a transparent colour")) continue;
    duet_test::Bytes content = sample.content(), text = {0, 0, 9000 >> 8, 9000 & 255, 't', 'E', 'X', 't'};
    text.resize(12 + 9000);
    content.insert(content.begin() + 33, text.begin(), text.end());
    fs::create_directories(root / "a");
    duet_test::write_file(root / "a/0.png", content);
  }
  const duet_test::Said said;
  const ImageFolder images(root.path(), {.transform = kSmall});
  CHECK(said.lines() == 0);
  for (int epoch = 0; epoch < 2; ++epoch) fetched(images, {0}, epoch);
  CHECK_THAT(said.text(), ContainsSubstring("transparency is dropped (as in "));
  CHECK(said.lines() == 1);
}
