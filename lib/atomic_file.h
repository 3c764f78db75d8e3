// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace duet {

/// Writes `parts`, one after the other, as the file `path`: into `path`.tmp.PID, fsync, rename, fsync of the folder.
/// After a crash at any moment `path` is either what it was or the new file. Throws DataError with path and system
/// error; the temporary file is then gone. Distinct paths may be written from distinct threads.
void write_atomically(const std::string& path, const std::vector<std::span<const std::byte>>& parts);
void write_atomically(const std::string& path, const std::string& text);

/// Makes `folder`, with its parents, if it is not there, and proves by writing and removing a file that `bytes` bytes
/// can be written in it. Throws DataError that says why not.
void require_writable(const std::string& folder, std::size_t bytes = 65536);

/// All bytes of a regular file. Throws DataError when it cannot be read or holds more than `limit` bytes.
std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t limit);

}  // namespace duet
