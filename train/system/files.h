// Files that the program reads back, folders of its own, and files that the user names for results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lib/base/descriptor.h"

namespace duet::cli {

/// Throws DataError.
std::string read_file(const std::string& path);

/// A temporary folder of this process, removed with all its files at the end. If the process is killed before, the next
/// process of the same user that makes one in the same place removes it: a lock is held while its process runs.
class TemporaryFolder {
 public:
  /// In `parent`, or in $TMPDIR or /tmp. Throws DataError.
  explicit TemporaryFolder(const std::string& parent);
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor lock_;
};

/// A file that an option names; an empty path: none is wanted.
struct Output {
  const char* option;
  std::string path;
  std::uint64_t bytes = 65536;  // that it will hold, about
};

/// Throws DataError that names the option unless every file can be written and the disks have room for all of them:
/// before work that would be lost.
void require_outputs(const std::vector<Output>& outputs);
void require_output(const char* option, const std::string& path);

/// Writes a regular file whole or not at all. Anything else that is there (a link, a pipe, a device) stays and is
/// written into; what names this process's standard output or error goes there, behind earlier text. Throws DataError.
void write_output(const std::string& path, const std::string& text);

/// What --json names: a file, "-" for the standard output, or "" for none.
bool to_stdout(const std::string& json);
void require_json_output(const std::string& json);
void write_json(const std::string& json, const std::string& text);
/// Where text for people goes: standard error where JSON goes to the standard output.
std::FILE* text_stream(const std::string& json);

}  // namespace duet::cli
