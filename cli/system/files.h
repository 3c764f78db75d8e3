// Files that the program reads back and folders of its own.
#pragma once

#include <string>

#include "lib/base/descriptor.h"

namespace duet::cli {

/// Throws DataError.
std::string read_file(const std::string& path);

/// A temporary folder of this process under $TMPDIR or /tmp, removed with all its files at the end. If the process is
/// killed before, the next process of the same user that makes such a folder removes it: a lock is held while its
/// process runs.
class TemporaryFolder {
 public:
  /// Throws DataError.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  ddp::Descriptor lock_;
};

}  // namespace duet::cli
