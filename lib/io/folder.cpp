#include "lib/io/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>

#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet {

bool is_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
  require<DataError>(errno == ENOENT || errno == ENOTDIR, "cannot find out what ", path, " is: ", last_errno);
  return false;
}

void make_folder(const std::string& path) {
  if (is_folder(path)) return;
  if (const std::string parent = folder_of(path); parent != path) make_folder(parent);
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int error = errno;  // another process may have made it meanwhile
  require<DataError>(error == EEXIST && is_folder(path), "cannot make folder ", path, ": ",
                     error == EEXIST ? "a file, or a link that leads nowhere, has this name" : errno_text(error),
                     path.empty() ? ", as its name is empty" : "");
}

std::vector<std::string> list_folder(const std::string& path) {
  for (;;) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
      names.push_back(at->path().filename().string());
    if (error == std::errc::interrupted) continue;
    require<DataError>(!error, "cannot list folder ", path, ": ", errno_text(error.value()));
    return names;
  }
}

std::string content_of(const std::string& path) {
  std::vector<std::string> names = is_folder(path) ? list_folder(path) : std::vector<std::string>();
  std::sort(names.begin(), names.end());
  return names.empty() ? "" : ", but has " + listed(names, "and", 4);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

namespace {

constexpr const char* kLockFile = ".duet.lock";
// A process that was killed has its lock until its memory is freed.
constexpr std::chrono::milliseconds kPatience{1000}, kPause{20};

/// "process 123 on node7, run duet-1-a, since 2026-11-25 02:10:33 UTC".
std::string own_name(const std::string& run) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return concat("process ", ::getpid(), " on ", host.data(), run.empty() ? "" : ", run ", run, ", since ",
                since.data());
}

/// Whether a file has no other name: others who may write to the folder may have linked a file of this user there.
bool has_one_name(const struct stat& status) { return S_ISREG(status.st_mode) && status.st_nlink == 1; }

/// The name that the lock's holder has written; it may not have done so yet.
std::string holder_of(const Descriptor& file) {
  std::array<char, 512> text{};
  struct stat status {};
  const bool names = ::fstat(file.get(), &status) == 0 && has_one_name(status);
  const ssize_t got = names ? ::pread(file.get(), text.data(), text.size(), 0) : 0;
  return got > 0 ? printable({text.data(), static_cast<std::size_t>(got)}) : "another process";
}

}  // namespace

bool lock_file(const Descriptor& file, int how) {
  return uninterrupted([&] { return ::flock(file.get(), how); }) == 0;
}

bool is_named(const Descriptor& file, const std::string& path) {
  struct stat own {
  }, named{};
  if (::fstat(file.get(), &own) != 0 || ::lstat(path.c_str(), &named) != 0) return false;
  errno = 0;
  return S_ISREG(own.st_mode) && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

FolderLock::FolderLock(const std::string& folder, const std::string& run)
    : path_((std::filesystem::path(folder) / kLockFile).string()) {
  for (const auto deadline = Clock::now() + kPatience; !take(); std::this_thread::sleep_for(kPause))
    require<DataError>(Clock::now() < deadline, "folder ", folder, " is written by ", holder_of(file_),
                       ": wait for its end or use another folder");
  const std::string name = own_name(run);
  // The lock holds without the name, too.
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !has_one_name(status) || status.st_uid != ::geteuid()) return;
  if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), name.data(), name.size(), 0) < 0) return;
}

FolderLock::~FolderLock() {
  if (file_.open()) ::unlink(path_.c_str());
}

bool FolderLock::take() {
  file_ =
      Descriptor(uninterrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644); }));
  const bool other_user = !file_.open() && errno == EACCES;
  require<DataError>(file_.open(), "cannot open ", path_, ": ", last_errno,
                     other_user ? "; a run of another user has the folder, or was killed: then remove the file" : "");
  if (!lock_file(file_, LOCK_EX | LOCK_NB)) {
    if (errno == EWOULDBLOCK || errno == ESTALE) return false;
    const bool no_locks = errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL;
    require<DataError>(no_locks, "cannot lock ", path_, ": ", last_errno);
    warning_ = concat(path_, " cannot be locked, so that nothing keeps another run out of the folder: ", last_errno);
    return true;
  }
  const bool named = is_named(file_, path_);
  require<DataError>(named || errno == 0 || errno == ENOENT, "cannot read ", path_, ": ", last_errno);
  return named;
}

}  // namespace duet
