// Atomic writes: a file is there whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/descriptor.h"
#include "lib/error.h"

namespace duet {

/// Writes `parts`, one after the other, as the file `path`: into `path`.tmp.PID, fsync, rename, fsync of the folder.
/// After a crash at any moment `path` is either what it was or the new file. Throws DataError with path and system
/// error; the temporary file is then gone, or the next one who writes `path` removes it. Threads, processes and hosts
/// may write at once, to the same path too.
void write_atomically(const std::string& path, const std::vector<std::span<const std::byte>>& parts);
void write_atomically(const std::string& path, const std::string& text);

/// Removes the temporary files in `folder` whose names begin with `start` and whose writers have ended, on whatever
/// host: a writer holds a lock on its file. Where the file system has no locks, or the folder cannot be listed, it
/// removes none.
void remove_abandoned_temporaries(const std::string& folder, std::string_view start);

/// Makes `folder`, with its parents, if it is not there, and proves by writing and removing a file that `bytes` bytes
/// can be written in it, of 0 that a file can be made. Throws DataError that says why not.
void require_writable(const std::string& folder, std::size_t bytes = 65536);

/// A file that the system does not open or read: what it holds is not known, so that it must not be taken for damaged.
class UnreadableFile : public DataError {
 public:
  using DataError::DataError;
};

/// A regular file, read from its beginning on. All errors are DataErrors that name it, UnreadableFile where its bytes
/// could not be had. Not thread-safe.
class FileReader {
 public:
  explicit FileReader(std::string path);

  std::uint64_t size() const { return size_; }  // bytes, when it was opened
  /// Fills `out` with the next bytes; throws where they are not there.
  void read(std::span<std::byte> out);

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0, done_ = 0;
};

}  // namespace duet
