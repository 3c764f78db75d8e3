#include "cli/system/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "duet-";
constexpr std::size_t kRandomPart = 6;       // of mkdtemp's names
constexpr const char* kLockFile = "/.lock";  // locked by the owning process until it ends

/// A folder of this user whose process has ended. The caller then holds the lock, so that only one of several
/// processes removes the folder.
bool is_abandoned(const std::string& folder, ddp::Descriptor& lock) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) return false;
  lock = ddp::Descriptor(::open((folder + kLockFile).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return lock.open() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(lock.get(), &status) == 0 &&
         status.st_nlink > 0;
}

void remove_abandoned(const std::string& base) {
  std::error_code error;
  std::vector<std::string> folders;
  for (fs::directory_iterator at(base, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kStem) && name.size() == kStem.size() + kRandomPart) folders.push_back(at->path().string());
  }
  for (const std::string& folder : folders) {
    ddp::Descriptor lock;
    if (is_abandoned(folder, lock)) fs::remove_all(folder, error);
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  require<DataError>(in.good() || in.eof(), "cannot read ", path);
  return content.str();
}

TemporaryFolder::TemporaryFolder() {
  const std::string parent = environment_variable("TMPDIR").value_or("/tmp");
  remove_abandoned(parent);
  path_ = concat(parent, "/", kStem, std::string(kRandomPart, 'X'));
  require<DataError>(::mkdtemp(path_.data()) != nullptr, "cannot make folder ", path_, ": ", last_errno);
  // The lock gets its name when it is held: no other process finds it free. Without locks the folder is never removed
  // by others.
  const std::string name = path_ + kLockFile, unnamed = name + ".new";
  lock_ = ddp::Descriptor(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (lock_.open() && ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) ::rename(unnamed.c_str(), name.c_str());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace duet::cli
