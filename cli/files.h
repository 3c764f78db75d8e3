// Files of a report: written whole or not at all.
#pragma once

#include <string>

namespace duet::cli {

/// Makes the folder if needed and writes, syncs and removes a file of `bytes` in it, so that a read-only or full one is
/// found before hours of training. Throws DataError that names the folder and the reason.
void check_writable(const std::string& folder, std::size_t bytes = 1 << 20);

/// Writes a temporary file beside `path`, syncs it and renames it. Throws DataError; the old file then stays.
void write_atomically(const std::string& path, const std::string& content);

/// Throws DataError.
std::string read_file(const std::string& path);

/// A folder of one's own under $TMPDIR or /tmp, removed with all its files at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace duet::cli
