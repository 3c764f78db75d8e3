#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/data/mnist/idx.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"
#include "tests/data/files.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;
using duet_test::ContainsSubstring;
using duet_test::TemporaryFolder;
using duet_test::write_file;

namespace {

std::string url(const std::filesystem::path& path) { return "file://" + path.string(); }

std::size_t count_files(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("one file is fetched, with progress") {
  const TemporaryFolder folder;
  const Bytes content(100000, 7);
  write_file(folder / "file", content);
  std::uint64_t last = 0;
  CHECK(fetch(url(folder / "file"), 100000, [&](std::uint64_t done, std::uint64_t) { last = done; }) == content);
  CHECK(last == 100000);
}

TEST_CASE("a fetch that fails names the address") {
  const TemporaryFolder folder;
  write_file(folder / "file", Bytes(100000, 7));
  CHECK_THROWS_WITH(fetch(url(folder / "absent"), 10), ContainsSubstring(url(folder / "absent") + ": "));
  CHECK_THROWS_WITH(fetch(url(folder / "file"), 99999), ContainsSubstring("larger than the 99999 bytes"));
  CHECK_THROWS_WITH(fetch("http://127.0.0.1:1/x", 10), ContainsSubstring("http://127.0.0.1:1/x: "));
  CHECK_THROWS_WITH(fetch("gopher://127.0.0.1/x", 10), ContainsSubstring("gopher://127.0.0.1/x: "));
  const auto stop = [](std::uint64_t, std::uint64_t) { throw UsageError("enough"); };
  CHECK_THROWS_WITH(fetch(url(folder / "file"), 100000, stop), "enough");
}

TEST_CASE("mirrors that are absent, damaged or wrong are all named, and nothing is left behind") {
  const TemporaryFolder folder;
  const auto wrong = folder / "wrong", damaged = folder / "damaged", cache = folder / "cache/mnist";
  duet_test::write_small_mnist(wrong, true);
  std::filesystem::create_directory(damaged);
  write_file(damaged / "train-images-idx3-ubyte.gz", Bytes(100, 'x'));
  const std::vector<std::string> mirrors = {url(folder / "absent"), url(damaged), url(wrong)};
  CHECK_THROWS_WITH(download_mnist(MnistKind::mnist, cache, {}, mirrors),
                    ContainsSubstring("no mirror gave train-images-idx3-ubyte.gz") && ContainsSubstring("absent/") &&
                        ContainsSubstring("a text that begins with \"xxx") && ContainsSubstring("expected 47040016"));
  CHECK(count_files(cache) == 0);
}

TEST_CASE("Fashion-MNIST's archives are checked as they come") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "mirror", true);
  CHECK_THROWS_WITH(download_mnist(MnistKind::fashion_mnist, folder / "cache", {}, {url(folder / "mirror")}),
                    ContainsSubstring("archive has SHA-256") &&
                        ContainsSubstring("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"));
}

TEST_CASE("content of the right size with wrong bytes, or with a byte more, is refused") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "mirror");
  Bytes content(47040016, 0);
  write_file(folder / "mirror/train-images-idx3-ubyte.gz", duet_test::gzip(content));
  CHECK_THROWS_WITH(download_mnist(MnistKind::mnist, folder / "cache", {}, {url(folder / "mirror")}),
                    ContainsSubstring("content has SHA-256") &&
                        ContainsSubstring("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"));
  content.push_back(0);
  write_file(folder / "mirror/train-images-idx3-ubyte.gz", duet_test::gzip(content));
  CHECK_THROWS_WITH(download_mnist(MnistKind::mnist, folder / "cache", {}, {url(folder / "mirror")}),
                    ContainsSubstring("unpacks to more than 47040016 bytes, expected 47040016"));
}

TEST_CASE("a folder that cannot be written is found before anything is fetched") {
  const TemporaryFolder folder;
  write_file(folder / "file", {1});
  bool asked = false;
  CHECK_THROWS_AS(
      download_mnist(MnistKind::mnist, folder / "file/cache",
                     [&](const std::string&, std::uint64_t, std::uint64_t) { asked = true; }, {url(folder / "absent")}),
      DataError);
  CHECK(!asked);
}

std::string sha256_of(const Bytes& bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

TEST_CASE("MNIST from a mirror: unpacked, kept, mended") {
  const auto real = duet_test::real_mnist();
  if (!real) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  const TemporaryFolder folder;
  const auto cache = folder / "cache/mnist";
  const std::vector<std::string> mirrors = {url(folder / "absent"), url(*real)};
  std::vector<std::string> asked;
  const auto progress = [&](const std::string& file, std::uint64_t, std::uint64_t) {
    if (asked.empty() || asked.back() != file) asked.push_back(file);
  };
  download_mnist(MnistKind::mnist, cache, progress, mirrors);
  CHECK(asked.size() == 4);
  CHECK(count_files(cache) == 4);
  CHECK(sha256_of(duet_test::read_file(cache / "t10k-images-idx3-ubyte")) ==
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7");
  CHECK(find_mnist(folder / "cache", MnistKind::mnist).complete());

  asked.clear();
  write_file(cache / "t10k-labels-idx1-ubyte", Bytes(10008, 1));
  download_mnist(MnistKind::mnist, cache, progress, mirrors);
  CHECK(asked == std::vector<std::string>{"t10k-labels-idx1-ubyte.gz"});
  CHECK(sha256_of(duet_test::read_file(cache / "t10k-labels-idx1-ubyte")) ==
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2");
}
