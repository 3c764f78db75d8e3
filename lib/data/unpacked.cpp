#include "lib/data/unpacked.h"

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <system_error>

#include "lib/atomic_file.h"
#include "lib/data/idx.h"
#include "lib/error.h"
#include "lib/sha256.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;

/// The name of a file's copy: its own name and a digest of its whole path, then what changes with its content.
struct CopyName {
  std::string place, version;
};

/// Nothing for a file that is not worth it.
CopyName copy_name(const fs::path& path) {
  struct stat status {};
  if (path.extension() != ".gz" || ::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  if (static_cast<std::uintmax_t>(status.st_size) < kWorthKeeping) return {};
  std::error_code error;
  const std::string whole = fs::canonical(path, error).string();
  if (error) return {};
  Sha256 digest;
  digest.update(std::as_bytes(std::span(whole)));
  return {concat(path.stem().string(), "-", digest.hex().substr(0, 16), "-"),
          concat(status.st_size, "-", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec)};
}

/// As read_idx_images reads it: see there.
std::string idx_header(const Tensor& images) {
  std::string header = {0, 0, 8, 3};
  for (const int dimension : {0, 2, 3})
    for (const int shift : {24, 16, 8, 0}) header += static_cast<char>(images.size(dimension) >> shift & 0xff);
  return header;
}

void remove_other_versions(const fs::path& folder, const CopyName& name) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with(name.place) && file != name.place + name.version) fs::remove(entry.path(), error);
  }
}

void keep(const Tensor& images, const fs::path& folder, const CopyName& name) {
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string header = idx_header(images);
  try {
    write_atomically((folder / (name.place + name.version)).string(),
                     {std::as_bytes(std::span(header)), std::as_bytes(images.span<std::uint8_t>())});
  } catch (const DataError&) {
    return;  // no room or no right to write: the next run unpacks again
  }
  remove_other_versions(folder, name);
}

}  // namespace

Tensor read_idx_images_once(const fs::path& path, const fs::path& folder) {
  const CopyName name = copy_name(path);
  if (name.place.empty()) return read_idx_images(path);
  const fs::path copy = folder / (name.place + name.version);
  std::error_code error;
  if (fs::is_regular_file(copy, error)) {
    try {
      return read_idx_images(copy);
    } catch (const DataError&) {
      fs::remove(copy, error);
    }
  }
  const Tensor images = read_idx_images(path);
  keep(images, folder, name);
  return images;
}

}  // namespace duet::data
