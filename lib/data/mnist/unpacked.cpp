// Unpacked copies of packed files.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/data/mnist/idx.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;

/// A packed file's copy.
struct Copy {
  std::string place;      // how its name begins: name of the packed file, and a digest of its whole path
  std::uint32_t crc = 0;  // of its content, CRC-32 of RFC 1952
  std::string name() const {
    std::array<char, 9> text{};
    std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(crc));
    return place + text.data();
  }
};

/// The CRC-32 that ends a gzip file: of its content, if that is one member.
std::optional<std::uint32_t> crc_of_content(const fs::path& path) {
  constexpr std::streamoff kTrailer = 8;  // bytes: CRC-32 and size, each with its lowest byte first
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> bytes{};
  if (!file.seekg(-kTrailer, std::ios::end).read(bytes.data(), bytes.size())) return {};
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) crc |= std::uint32_t{static_cast<std::uint8_t>(bytes[i])} << 8 * i;
  return crc;
}

/// Nothing for a file that is not worth a copy.
std::optional<Copy> copy_of(const fs::path& path) {
  std::error_code error;
  if (path.extension() != ".gz" || !fs::is_regular_file(path, error)) return {};
  if (fs::file_size(path, error) < kWorthKeeping || error) return {};
  const std::string whole = fs::canonical(path, error).string();
  const std::optional<std::uint32_t> crc = crc_of_content(path);
  if (error || !crc) return {};
  Sha256 digest;
  digest.update(std::as_bytes(std::span(whole)));
  return Copy{concat(path.stem().string(), "-", digest.hex().substr(0, 16), "-"), *crc};
}

/// As read_idx_images reads it: see there.
std::string idx_header(const Tensor& images) {
  std::string header = {0, 0, 8, 3};
  for (const int dimension : {0, 2, 3})
    for (const int shift : {24, 16, 8, 0}) header += static_cast<char>(images.size(dimension) >> shift & 0xff);
  return header;
}

std::uint32_t crc_of_file(const Tensor& images) {
  const std::string header = idx_header(images);
  const auto pixels = images.span<std::uint8_t>();
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
  crc = crc32_z(crc, pixels.data(), pixels.size());
  return static_cast<std::uint32_t>(crc);
}

/// The copy's images; undefined where there is none, or one that is damaged.
Tensor read_copy(const fs::path& path, std::uint32_t crc) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  try {
    const Tensor images = read_idx_images(path);
    if (crc_of_file(images) != crc) return {};
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // of use: see limit_size()
    return images;
  } catch (const DataError&) {
    return {};
  }
}

/// Removes older versions of `copy`, what killed writers left, and the copies used least recently beyond kMostKept.
void limit_size(const fs::path& folder, const Copy& copy) {
  remove_abandoned_temporaries(folder.string(), "");
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> kept;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const fs::directory_entry& entry = *at;
    std::error_code ignored;
    const std::string file = entry.path().filename().string();
    if (file.find(kTemporaryMark) != std::string::npos) continue;  // of a running writer
    if (file.starts_with(copy.place) && file != copy.name())
      fs::remove(entry.path(), ignored);
    else
      kept.emplace_back(entry.last_write_time(ignored), entry.path());
  }
  std::ranges::sort(kept, std::greater{});
  std::uintmax_t bytes = 0;
  for (const auto& [used, path] : kept) {
    const std::uintmax_t size = fs::file_size(path, error);
    if (!error && (bytes += size) > kMostKept) fs::remove(path, error);
  }
}

void keep(const Tensor& images, const fs::path& folder, const Copy& copy) {
  const std::string header = idx_header(images);
  const auto pixels = std::as_bytes(images.span<std::uint8_t>());
  if (header.size() + pixels.size() > kMostKept || crc_of_file(images) != copy.crc) return;
  std::error_code error;
  fs::create_directories(folder, error);
  try {
    write_atomically((folder / copy.name()).string(), {std::as_bytes(std::span(header)), pixels});
  } catch (const DataError&) {
    return;  // no room or no right to write: the next run unpacks again
  }
  limit_size(folder, copy);
}

}  // namespace

Tensor read_idx_images_once(const fs::path& path, const fs::path& folder) {
  const std::optional<Copy> copy = copy_of(path);
  if (!copy) return read_idx_images(path);
  if (const Tensor images = read_copy(folder / copy->name(), copy->crc); images.defined()) return images;
  const Tensor images = read_idx_images(path);
  keep(images, folder, *copy);
  return images;
}

}  // namespace duet::data
