// Files that the program reads back and folders of its own.
#pragma once

#include <string>

namespace duet::cli {

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
