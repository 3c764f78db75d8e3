// Images that are mapped, and packed ones that are unpacked once.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "lib/data/mnist/idx.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/data/files.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;
using duet_test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

constexpr std::uint32_t kImages = 1500;  // of noise: packed, more than kWorthKeeping

Bytes noise(std::uint64_t seed) {
  Bytes pixels(kImages * 784);
  Mt19937 generator(seed);
  for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(generator.randint(0, 256));
  return pixels;
}

Bytes pixels_of(const Tensor& images) {
  const auto span = images.span<std::uint8_t>();
  return {span.begin(), span.end()};
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) files.push_back(entry.path());
  return files;
}

}  // namespace

TEST_CASE("images of a plain file are mapped: others' writes to a new file and our own stay apart") {
  const TemporaryFolder folder;
  const fs::path file = folder / "images";
  const Bytes content = duet_test::idx({2051, 2, 1, 3}, {1, 2, 3, 4, 5, 6});
  duet_test::write_file(file, content);
  const Tensor images = read_idx_images(file);
  CHECK(images.shape() == Shape{2, 1, 1, 3});
  CHECK(pixels_of(images) == Bytes{1, 2, 3, 4, 5, 6});
  images.data<std::uint8_t>()[0] = 99;
  CHECK(duet_test::read_file(file) == content);
  fs::remove(file);
  duet_test::write_file(file, duet_test::idx({2051, 1, 1, 1}, {7}));
  CHECK(pixels_of(images) == Bytes{99, 2, 3, 4, 5, 6});
}

TEST_CASE("packed images are unpacked once, and again when their file changed") {
  const TemporaryFolder folder;
  const fs::path file = folder / "images.gz", cache = folder / "a/b";
  const Bytes first = noise(1), second = noise(2);
  duet_test::write_file(file, duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, first)));
  CHECK(pixels_of(read_idx_images_once(file, cache)) == first);
  REQUIRE(files_in(cache).size() == 1);
  CHECK(pixels_of(read_idx_images(files_in(cache)[0])) == first);

  // The next reading takes the copy: the packed file, damaged in its middle, would be refused.
  Bytes packed = duet_test::read_file(file);
  packed[packed.size() / 2] ^= 1;
  duet_test::write_file(file, packed);
  REQUIRE_THROWS_AS(read_idx_images(file), DataError);
  CHECK(pixels_of(read_idx_images_once(file, cache)) == first);

  duet_test::write_file(file, duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, second)));
  CHECK(pixels_of(read_idx_images_once(file, cache)) == second);
  CHECK(files_in(cache).size() == 1);
}

TEST_CASE("a damaged copy is replaced, and a cache that cannot be written is done without") {
  const TemporaryFolder folder;
  const fs::path file = folder / "images.gz", cache = folder / "cache";
  const Bytes pixels = noise(3);
  duet_test::write_file(file, duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, pixels)));
  read_idx_images_once(file, cache);
  fs::resize_file(files_in(cache).at(0), 5000);
  CHECK(pixels_of(read_idx_images_once(file, cache)) == pixels);
  CHECK(fs::file_size(files_in(cache).at(0)) == pixels.size() + 16);
  Bytes damaged = duet_test::read_file(files_in(cache)[0]);
  damaged[9000] ^= 4;
  duet_test::write_file(files_in(cache)[0], damaged);
  CHECK(pixels_of(read_idx_images_once(file, cache)) == pixels);
  CHECK(duet_test::read_file(files_in(cache).at(0)) != damaged);
  duet_test::write_file(folder / "no folder", {1});
  CHECK(pixels_of(read_idx_images_once(file, folder / "no folder")) == pixels);
}

TEST_CASE("a file of several gzip members has no copy") {
  const TemporaryFolder folder;
  const fs::path file = folder / "images.gz", cache = folder / "cache";
  const Bytes pixels = noise(5);
  Bytes packed = duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, {}));
  const Bytes second = duet_test::gzip(pixels);
  packed.insert(packed.end(), second.begin(), second.end());
  duet_test::write_file(file, packed);
  for (int i = 0; i < 2; ++i) CHECK(pixels_of(read_idx_images_once(file, cache)) == pixels);
  CHECK(files_in(cache).empty());
}

TEST_CASE("copies that were used least recently go when all are too large, and so do dead writers' files") {
  const TemporaryFolder folder;
  const fs::path file = folder / "images.gz", cache = folder / "cache";
  fs::create_directories(cache);
  const auto now = fs::file_time_type::clock::now();
  const std::vector<std::string> names = {"used", "unused", "images-1.tmp.1"};
  for (const std::string& name : names) {
    duet_test::write_file(cache / name, {1});
    fs::resize_file(cache / name, kMostKept / 2);
    fs::last_write_time(cache / name, now - std::chrono::hours(name == "used" ? 1 : 2));
  }
  const Bytes pixels = noise(6);
  duet_test::write_file(file, duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, pixels)));
  CHECK(pixels_of(read_idx_images_once(file, cache)) == pixels);
  CHECK(fs::exists(cache / "used"));
  CHECK_FALSE(fs::exists(cache / "unused"));
  CHECK(files_in(cache).size() == 2);
}

TEST_CASE("copies are kept of large packed images only, in the cache that was named") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder.path(), true);
  MnistOptions options{.data = folder.path().string()};
  options.cache = folder / "cache";
  load_mnist(options);
  CHECK(files_in(folder / "cache/unpacked").empty());
  const Bytes pixels = noise(4);
  duet_test::write_file(folder / "train-images-idx3-ubyte.gz",
                        duet_test::gzip(duet_test::idx({2051, kImages, 28, 28}, pixels)));
  duet_test::write_file(folder / "train-labels-idx1-ubyte.gz",
                        duet_test::gzip(duet_test::idx({2049, kImages}, Bytes(kImages, 3))));
  for (int i = 0; i < 2; ++i) CHECK(pixels_of(load_mnist(options).train.images()) == pixels);
  CHECK(files_in(folder / "cache/unpacked").size() == 1);
}
