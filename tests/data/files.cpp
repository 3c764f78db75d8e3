#include "tests/data/files.h"

#include <stdlib.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "lib/data/mnist/mnist.h"

namespace duet_test {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "duet-test-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

void write_file(const fs::path& path, const Bytes& content) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

Bytes idx(const std::vector<std::uint32_t>& words, const Bytes& payload) {
  Bytes out;
  for (const std::uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(word >> shift));
  }
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

Bytes idx_images(std::uint32_t n) {
  Bytes pixels(n * 784);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7 + i / 784);
  return idx({2051, n, 28, 28}, pixels);
}

Bytes idx_labels(std::uint32_t n) {
  Bytes labels(n);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  return idx({2049, n}, labels);
}

Bytes gzip(const Bytes& content) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("zlib");
  Bytes out(deflateBound(&stream, content.size()) + 64);
  stream.next_in = const_cast<Bytef*>(content.data());
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("zlib");
  return out;
}

void write_small_mnist(const fs::path& folder, bool packed) {
  fs::create_directories(folder);
  const Bytes content[] = {idx_images(5), idx_labels(5), idx_images(3), idx_labels(3)};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string name = duet::data::kMnistFiles[i];
    write_file(folder / (packed ? name + ".gz" : name), packed ? gzip(content[i]) : content[i]);
  }
}

std::optional<fs::path> real_mnist() {
  std::vector<fs::path> places;
  if (const char* const data = std::getenv("DUET_DATA")) places.emplace_back(data);
  if (const char* const root = std::getenv("DUET_SOURCE_ROOT")) places.push_back(fs::path(root) / "../shared/data");
  for (const fs::path& place : places) {
    const auto files = duet::data::find_mnist(place, duet::data::MnistKind::mnist);
    if (files.complete()) return files.folder;
  }
  return std::nullopt;
}

}  // namespace duet_test
