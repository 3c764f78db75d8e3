#include "lib/data/mnist/download.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <system_error>

#include "lib/base/sha256.h"
#include "lib/data/mnist/byte_reader.h"
#include "lib/data/mnist/fetch.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

/// SHA-256 of files with the published MD5; an empty one is not known. Mirrors pack MNIST anew, so only its content is
/// known; of Fashion-MNIST the archives are.
struct Published {
  std::size_t bytes;  // unpacked
  const char* content;
  const char* archive;
};

constexpr std::array<Published, 4> kPublishedMnist = {{
    {47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", ""},
    {60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", ""},
    {7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", ""},
    {10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", ""},
}};
constexpr std::array<Published, 4> kPublishedFashion = {{
    {47040016, "", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
    {60008, "", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
    {7840016, "", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
    {10008, "", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"},
}};

const std::array<Published, 4>& published(MnistKind kind) {
  return kind == MnistKind::mnist ? kPublishedMnist : kPublishedFashion;
}

void check_sum(const std::string& name, const char* what, std::span<const std::uint8_t> bytes, const char* expected) {
  if (!*expected) return;
  const std::string found = sha256_hex(std::as_bytes(bytes));
  require<DataError>(found == expected, name, ": ", what, " has SHA-256 ", found, ", expected ", expected);
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
    check_sum(path.string(), "content", read_exactly(reader, wanted.bytes), wanted.content);
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
  check_sum(url, "archive", archive, wanted.archive);
  ByteReader reader(archive, url);
  Bytes content = read_exactly(reader, wanted.bytes);
  check_sum(url, "content", content, wanted.content);
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
