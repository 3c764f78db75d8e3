// Files for the tests of readers: temporary folders, IDX and gzip content, the real MNIST if it is there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace duet_test {

using Bytes = std::vector<std::uint8_t>;

/// A new empty folder, removed with all in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, const Bytes& content);
Bytes read_file(const std::filesystem::path& path);

/// `words` as big-endian 32-bit numbers, then `payload`.
Bytes idx(const std::vector<std::uint32_t>& words, const Bytes& payload);
/// n images of 28 x 28 pixels that differ, and n labels.
Bytes idx_images(std::uint32_t n);
Bytes idx_labels(std::uint32_t n);
Bytes gzip(const Bytes& content);

/// Writes the four files of a small set of 5 + 3 images.
void write_small_mnist(const std::filesystem::path& folder, bool packed);

/// The folder of the real MNIST (in $DUET_DATA, or shared/data next to the source tree), if it is there.
std::optional<std::filesystem::path> real_mnist();

}  // namespace duet_test
