#include "lib/data/mnist/download.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <system_error>

#include "lib/data/mnist/byte_reader.h"
#include "lib/data/mnist/fetch.h"
#include "lib/data/mnist/md5.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

/// Sums as published; an empty one is not known. Mirrors pack MNIST anew, so only its content is known; of
/// Fashion-MNIST the archives are.
struct Published {
  std::size_t bytes;  // unpacked
  const char* content_md5;
  const char* archive_md5;
};

constexpr std::array<Published, 4> kPublishedMnist = {{
    {47040016, "6bbc9ace898e44ae57da46a324031adb", ""},
    {60008, "a25bea736e30d166cdddb491f175f624", ""},
    {7840016, "2646ac647ad5339dbf082846283269ea", ""},
    {10008, "27ae3e4e09519cfbb04c329615203637", ""},
}};
constexpr std::array<Published, 4> kPublishedFashion = {{
    {47040016, "", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
    {60008, "", "25c81989df183df01b3e8a0aad5dffbe"},
    {7840016, "", "bef4ecab320f06d8554ea6380940ec79"},
    {10008, "", "bb300cfdad3c16e7a12a480ee83cd310"},
}};

const std::array<Published, 4>& published(MnistKind kind) {
  return kind == MnistKind::mnist ? kPublishedMnist : kPublishedFashion;
}

void check_md5(const std::string& name, const char* what, std::span<const std::uint8_t> bytes, const char* expected) {
  if (!*expected) return;
  const std::string found = md5_hex(bytes);
  require<DataError>(found == expected, name, ": ", what, " has MD5 ", found, ", expected ", expected);
}

/// All of the file; throws DataError unless it has exactly `expected` bytes.
Bytes read_exactly(ByteReader& reader, std::size_t expected) {
  Bytes content(expected + 1);
  const std::size_t count = reader.read(content);
  require<DataError>(count == expected, reader.name(), ": unpacks to ", count > expected ? "more than " : "",
                     std::min(count, expected), " bytes, expected ", expected);
  content.resize(expected);
  return content;
}

/// True when the file is there and, as far as sums are known, whole.
bool is_whole(const fs::path& path, const Published& wanted) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  try {
    ByteReader reader(path);
    check_md5(path.string(), "content", read_exactly(reader, wanted.bytes), wanted.content_md5);
    return true;
  } catch (const DataError&) {
    return false;  // damaged: fetched again, and then replaced
  }
}

Bytes fetch_content(const std::string& url, const std::string& file, const Published& wanted,
                    const DownloadProgress& progress) {
  const Bytes archive = fetch(url, wanted.bytes, [&](std::uint64_t done, std::uint64_t total) {
    if (progress) progress(file, done, total);
  });
  check_md5(url, "archive", archive, wanted.archive_md5);
  ByteReader reader(archive, url);
  Bytes content = read_exactly(reader, wanted.bytes);
  check_md5(url, "content", content, wanted.content_md5);
  return content;
}

}  // namespace

std::vector<std::string> mnist_mirrors(MnistKind kind) {
  if (kind == MnistKind::mnist) {
    return {"https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"};
  }
  return {"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
          "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"};
}

void download_mnist(MnistKind kind, const fs::path& folder, const DownloadProgress& progress) {
  download_mnist(kind, folder, mnist_mirrors(kind), progress);
}

void download_mnist(MnistKind kind, const fs::path& folder, const std::vector<std::string>& mirrors,
                    const DownloadProgress& progress) {
  std::size_t total = 0;
  for (const Published& file : published(kind)) total += file.bytes;
  require_writable(folder.string(), total);
  for (std::size_t i = 0; i < kMnistFiles.size(); ++i) {
    const Published& wanted = published(kind)[i];
    const fs::path path = folder / kMnistFiles[i];
    if (is_whole(path, wanted)) continue;
    const std::string file = std::string(kMnistFiles[i]) + ".gz";
    Bytes content;
    std::string reasons;
    for (const std::string& mirror : mirrors) {
      try {
        content = fetch_content(mirror + "/" + file, file, wanted, progress);
        break;
      } catch (const DataError& error) {
        reasons += concat(reasons.empty() ? "" : "; ", error.what());
      }
    }
    require<DataError>(!content.empty(), "no mirror gave ", file, ": ", reasons);
    write_atomically(path.string(), {std::as_bytes(std::span(content))});
  }
}

}  // namespace duet::data
