// Folders: making and listing them, with what the system says where it cannot, and who may write in one. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "lib/base/descriptor.h"

namespace duet {

/// Whether there is a folder, or a link to one, of this name. Throws DataError where that cannot be found out.
bool is_folder(const std::string& path);

/// Makes a folder, with its parents, unless it is there. Throws DataError that names it.
void make_folder(const std::string& path);

/// Names of what is in a folder, in any order. Throws DataError where it cannot be listed to its end.
std::vector<std::string> list_folder(const std::string& path);

/// Returns ", but has a, b, c, d and 7 more", for errors about what a folder lacks; empty if there is nothing.
std::string content_of(const std::string& path);

/// The folder that holds `path`; "." for a bare name.
std::string folder_of(const std::string& path);

/// flock(), made again where a signal ends it. False with errno where it fails.
bool lock_file(const Descriptor& file, int how);

/// Whether this regular file still has the name `path`. It may have been removed or renamed after it was opened, before
/// it was locked. False with errno where that cannot be found out, else with 0.
bool is_named(const Descriptor& file, const std::string& path);

/// Keeps others from taking the same lock while this lives: a lock on FOLDER/.duet.lock, which goes with its process,
/// however that ends, and which NFS shares with other hosts. Whoever only reads the folder needs none.
class FolderLock {
 public:
  /// Throws DataError when the file cannot be opened, or another still has the lock after a second: names its process,
  /// host, run and time, as that has written them to the file. `run`: of this process; empty where runs have no names.
  explicit FolderLock(const std::string& folder, const std::string& run = "");
  FolderLock(FolderLock&&) noexcept = default;
  ~FolderLock();

  /// Why nobody is kept out: the file system has no locks. Else empty.
  const std::string& warning() const { return warning_; }

 private:
  /// False while another has it.
  bool take();

  std::string path_, warning_;
  Descriptor file_;
};

}  // namespace duet
