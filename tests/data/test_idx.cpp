#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/data/mnist/idx.h"
#include "lib/random.h"
#include "tests/data/files.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;
using duet_test::ContainsSubstring;
using duet_test::gzip;
using duet_test::idx;

namespace {

Tensor images(const Bytes& content, const std::string& name = "images") {
  ByteReader reader(content, name);
  return read_idx_images(reader);
}

Tensor labels(const Bytes& content, const std::string& name = "labels") {
  ByteReader reader(content, name);
  return read_idx_labels(reader);
}

/// What the reader says about a damaged file.
template <class Read>
std::string complaint(Read read, const Bytes& content, const std::string& name) {
  try {
    read(content, name);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no complaint";
}
std::string about_images(const Bytes& content, const std::string& name = "a") {
  return complaint(images, content, name);
}
std::string about_labels(const Bytes& content, const std::string& name = "a") {
  return complaint(labels, content, name);
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// True if reading gives a tensor or a DataError; anything else is the caller's to see.
bool survives(const Bytes& content, const std::string& name) {
  try {
    images(content, name);
  } catch (const DataError&) {
  }
  return true;
}

}  // namespace

TEST_CASE("images and labels, plain and packed") {
  const Bytes plain = idx({2051, 2, 1, 3}, {1, 2, 3, 250, 251, 252});
  for (const Bytes& content : {plain, gzip(plain)}) {
    const Tensor read = images(content);
    CHECK(read.shape() == Shape{2, 1, 1, 3});
    CHECK(Bytes(read.span<std::uint8_t>().begin(), read.span<std::uint8_t>().end()) == Bytes{1, 2, 3, 250, 251, 252});
  }
  const Tensor read = labels(gzip(idx({2049, 3}, {0, 9, 4})), "labels.gz");
  CHECK(read.shape() == Shape{3});
  CHECK(read.data<std::int64_t>()[1] == 9);
}

TEST_CASE("files on disk, longer than a piece of the reader") {
  const duet_test::TemporaryFolder folder;
  const Bytes content = duet_test::idx_images(300);
  duet_test::write_file(folder / "plain", content);
  duet_test::write_file(folder / "packed.gz", gzip(content));
  for (const char* const name : {"plain", "packed.gz"}) {
    const Tensor read = read_idx_images(folder / name);
    CHECK(read.shape() == Shape{300, 1, 28, 28});
    CHECK(Bytes(read.span<std::uint8_t>().begin(), read.span<std::uint8_t>().end()) ==
          Bytes(content.begin() + 16, content.end()));
  }
}

TEST_CASE("images of a plain file are mapped: others' writes to a new file and our own stay apart") {
  const duet_test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "images";
  const Bytes content = idx({2051, 2, 1, 3}, {1, 2, 3, 4, 5, 6});
  duet_test::write_file(file, content);
  const Tensor read = read_idx_images(file);
  const auto pixels = [&] { return Bytes(read.span<std::uint8_t>().begin(), read.span<std::uint8_t>().end()); };
  CHECK(read.shape() == Shape{2, 1, 1, 3});
  CHECK(pixels() == Bytes{1, 2, 3, 4, 5, 6});
  read.data<std::uint8_t>()[0] = 99;
  CHECK(duet_test::read_file(file) == content);
  std::filesystem::remove(file);
  duet_test::write_file(file, idx({2051, 1, 1, 1}, {7}));
  CHECK(pixels() == Bytes{99, 2, 3, 4, 5, 6});
}

TEST_CASE("every kind of damage is named, with the file, the field, what was found and what was expected") {
  const Bytes good = idx({2051, 2, 1, 3}, {1, 2, 3, 4, 5, 6}), packed = gzip(good);
  CHECK(about_images({}) == "a: is empty");
  CHECK(about_images({}, "a.gz") == "a.gz: is empty");
  CHECK(about_images(good, "a.gz") == "a.gz: is not gzip data: begins with 00 00, expected 1f 8b");
  CHECK(about_images({0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}) ==
        "a: expected IDX data, packed by gzip or not, but it is a PNG image");
  CHECK(about_images({'<'}, "a.gz") == "a.gz: is not gzip data: begins with 3c, expected 1f 8b");
  CHECK(about_images(idx({2049, 2}, {1, 2})) == "a: field 'magic' is 2049, expected 2051 (images)");
  CHECK(about_labels(good) == "a: field 'magic' is 2051, expected 2049 (labels)");
  CHECK(about_images(idx({2051, 2}, {0, 0})) == "a: is truncated: ends within the header, in field 'rows'");
  CHECK(about_images(idx({2051, 0, 28, 28}, {})) == "a: field 'number of images' is 0, expected 1 or more");
  CHECK(about_images(idx({2051, 1, 28, 0}, {})) == "a: field 'columns' is 0, expected 1 or more");
  CHECK(about_images(Bytes(good.begin(), good.end() - 1)) == "a: is truncated: field 'pixels' has 5 bytes, expected 6");
  CHECK(about_images(gzip(Bytes(good.begin(), good.end() - 1)), "a.gz") ==
        "a.gz: is truncated: field 'pixels' has 5 bytes, expected 6");
  CHECK(about_images(idx({2051, 2, 1, 3}, {1, 2, 3, 4, 5, 6, 7})) ==
        "a: continues after the 6 bytes of field 'pixels' that the header announces");
  CHECK(about_labels(idx({2049, 3}, {1, 10, 2})) == "a: label 1 is 10, expected 0 to 9");
  CHECK(about_labels(idx({2049, 3}, {1, 255, 2})) == "a: label 1 is 255, expected 0 to 9");
}

TEST_CASE("headers that announce more than a file can hold are refused before memory is taken") {
  CHECK_THAT(about_images(idx({2051, 0xffffffff, 28, 28}, {})),
             duet_test::ContainsSubstring("announces 4294967295 x 28 x 28 bytes, expected at most"));
  CHECK_THAT(about_images(idx({2051, 0x80000000, 0x80000000, 4}, {})),  // 2^64 bytes
             duet_test::ContainsSubstring("expected at most"));
  CHECK_THAT(about_images(idx({2051, 0xffffffff, 0xffffffff, 0xffffffff}, {})),
             duet_test::ContainsSubstring("expected at most"));
  CHECK_THAT(about_images(idx({2051, 1000000, 28, 28}, {1})),
             duet_test::ContainsSubstring("which a file of 17 bytes cannot hold"));
  CHECK_THAT(about_images(gzip(idx({2051, 1000000, 28, 28}, {1}))), duet_test::ContainsSubstring("cannot hold"));
  CHECK_THAT(about_labels(idx({2049, 0xffffffff}, {1})), duet_test::ContainsSubstring("cannot hold"));
}

TEST_CASE("damaged gzip data is named") {
  const Bytes packed = gzip(idx({2051, 2, 1, 3}, {1, 2, 3, 4, 5, 6}));
  CHECK_THAT(about_images(Bytes(packed.begin(), packed.begin() + 20)),
             duet_test::ContainsSubstring("a: is truncated: the gzip data does not end within the file's 20 bytes"));
  Bytes wrong_sum = packed;
  wrong_sum[packed.size() - 8] ^= 1;
  CHECK(about_images(wrong_sum) == "a: is corrupt gzip data: incorrect data check");
  Bytes wrong_size = packed;
  wrong_size[packed.size() - 1] ^= 1;
  CHECK(about_images(wrong_size) == "a: is corrupt gzip data: incorrect length check");
  Bytes trailing = packed;
  trailing.push_back(0);
  CHECK(about_images(trailing) == "a: has bytes after the end of its gzip data");
}

TEST_CASE("gzip data of several members is their contents, one after the other") {
  const Bytes content = duet_test::idx_images(300);
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{100000}, std::size_t{777}, std::size_t{64}}) {
    Bytes members;
    for (std::size_t at = 0; at < content.size(); at += piece)
      members = joined(
          members, gzip(Bytes(content.begin() + static_cast<std::ptrdiff_t>(at),
                              content.begin() + static_cast<std::ptrdiff_t>(std::min(content.size(), at + piece)))));
    CAPTURE(piece);
    for (const Bytes& file : {members, joined(members, gzip({})), joined(gzip({}), members)}) {  // bgzip ends so
      const Tensor read = images(file, "a.gz");
      CHECK(Bytes(read.span<std::uint8_t>().begin(), read.span<std::uint8_t>().end()) ==
            Bytes(content.begin() + 16, content.end()));
    }
    CHECK_THAT(about_images(joined(members, {0}), "a.gz"), ContainsSubstring("has bytes after the end"));
    CHECK_THAT(about_images(joined(members, {0x1f}), "a.gz"), ContainsSubstring("is truncated"));
    CHECK_THAT(about_images(joined(members, {0x1f, 0x8c}), "a.gz"), ContainsSubstring("corrupt gzip data"));
    CHECK_THAT(about_images(joined(members, gzip({1})), "a.gz"), ContainsSubstring("continues after"));
    const Bytes empty = gzip({});
    for (std::size_t size = 1; size < empty.size(); ++size)
      REQUIRE(about_images(joined(members, Bytes(empty.begin(), empty.begin() + static_cast<std::ptrdiff_t>(size))),
                           "a.gz") != "no complaint");
  }
}

TEST_CASE("members that lie across the pieces in which a file is read") {
  const duet_test::TemporaryFolder folder;
  const Bytes content = duet_test::idx_images(2);
  Bytes file;
  while (file.size() < 3 * 65536) file = joined(file, gzip({}));  // 20 bytes each, which does not divide 64 KiB
  file = joined(file, gzip(content));
  duet_test::write_file(folder / "members.gz", file);
  CHECK(read_idx_images(folder / "members.gz").shape() == Shape{2, 1, 28, 28});
}

TEST_CASE("a bomb is left when the header's bytes are read") {
  Bytes zeros(20 << 20);  // 20 MiB of zeros in 20 KiB
  const Bytes header = idx({2051, 1, 28, 28}, {});
  std::copy(header.begin(), header.end(), zeros.begin());
  CHECK(about_images(gzip(zeros)) == "a: continues after the 784 bytes of field 'pixels' that the header announces");
}

TEST_CASE("files that cannot be read") {
  const duet_test::TemporaryFolder folder;
  CHECK_THROWS_WITH(read_idx_images(folder / "absent"),
                    duet_test::ContainsSubstring("absent: cannot be opened: No such file or directory"));
  CHECK_THROWS_WITH(read_idx_images(folder.path()), duet_test::ContainsSubstring("is a folder, expected a file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  REQUIRE(::mkfifo((folder / "pipe.gz").c_str(), 0600) == 0);
  for (const std::filesystem::path& path : {folder / "pipe", folder / "pipe.gz", std::filesystem::path("/dev/zero")}) {
    CHECK_THROWS_WITH(read_idx_images(path), ContainsSubstring(path.string() + ": is not a regular file"));
    CHECK_THROWS_WITH(read_idx_labels(path), ContainsSubstring(path.string() + ": is not a regular file"));
  }
  duet_test::write_file(folder / "empty.gz", {});
  CHECK_THROWS_WITH(read_idx_labels(folder / "empty.gz"), duet_test::ContainsSubstring("empty.gz: is empty"));
}

TEST_CASE("a file cut at any byte gives an error") {
  const Bytes plain = duet_test::idx_images(2), packed = gzip(plain);
  for (std::size_t size = 0; size < plain.size(); ++size) {
    REQUIRE(about_images(Bytes(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(size))) != "no complaint");
  }
  for (std::size_t size = 0; size < packed.size(); ++size) {
    REQUIRE(about_images(Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size)), "a.gz") !=
            "no complaint");
  }
}

TEST_CASE("files with changed bytes give a tensor or an error, never a crash") {
  const Bytes plain = duet_test::idx_images(2), packed = gzip(plain);
  Philox random(2024);
  bool alive = true;
  for (int i = 0; i < 3000; ++i) {
    for (const Bytes* const original : {&plain, &packed}) {
      Bytes damaged = *original;
      const auto near_header = static_cast<std::uint32_t>(i % 2 ? 24 : damaged.size());
      for (std::uint32_t n = random.below(4) + 1; n > 0; --n) {
        damaged[random.below(near_header)] = static_cast<std::uint8_t>(random.word());
      }
      alive = survives(damaged, original == &packed ? "a.gz" : "a") && alive;
    }
  }
  CHECK(alive);
}

TEST_CASE("random bytes are refused") {
  Philox random(7);
  for (int i = 0; i < 1000; ++i) {
    Bytes noise(random.below(200));
    for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>(random.word());
    if (i % 2 && noise.size() > 1) noise[0] = 0x1f, noise[1] = 0x8b;
    REQUIRE(about_images(noise) != "no complaint");
  }
}
