#include "lib/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lib/base/fault_point.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet {
namespace {

/// An open file; errors name it.
class File {
 public:
  File(std::string path, int descriptor) : path_(std::move(path)), file_(descriptor) {
    require<DataError>(file_.open(), "cannot open ", path_, ": ", last_errno);
  }

  void write(std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t step = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
      if (step < 0 && errno == EINTR) continue;
      require<DataError>(step > 0, "cannot write ", path_, " after ", done, " of ", bytes.size(),
                         " bytes: ", errno_text(step < 0 ? errno : ENOSPC));
      done += static_cast<std::size_t>(step);
    }
  }

  void sync() {
    // Some file systems have nothing to sync for a folder and say EINVAL.
    require<DataError>(::fsync(file_.get()) == 0 || errno == EINVAL, "cannot sync ", path_, ": ", last_errno);
  }

  void close() { require<DataError>(::close(file_.release()) == 0, "cannot close ", path_, ": ", last_errno); }

 private:
  std::string path_;
  Descriptor file_;
};

bool lock(const Descriptor& file, int how) {
  int result = 0;
  do result = ::flock(file.get(), how);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

/// A new file, removed unless it was renamed. It is locked while this lives: the lock goes with the process, and NFS
/// shares it with other hosts. A file system without locks is used without them.
class Temporary {
 public:
  explicit Temporary(const std::string& start) {
    const std::string first = concat(start, kTemporaryMark, ::getpid());
    path_ = first;
    for (int taken = 1; !make(); ++taken) path_ = concat(first, ".", taken);
  }
  ~Temporary() {
    if (!kept_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(const std::vector<std::span<const std::byte>>& parts) {
    File file(path_, ::fcntl(lock_.get(), F_DUPFD_CLOEXEC, 0));  // closed before the lock goes: that may fail too
    for (const auto& part : parts) file.write(part);
    file.sync();
    file.close();
  }

  void rename_to(const std::string& path) {
    fault_point("rename");
    require<DataError>(::rename(path_.c_str(), path.c_str()) == 0, "cannot rename ", path_, " to ", path, ": ",
                       last_errno);
    kept_ = true;
  }

 private:
  /// False where a running writer has the name: another thread, or a process of another host.
  bool make() {
    for (;;) {
      lock_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (!lock_.open() && errno == EEXIST) {
        if (!remove_abandoned_temporary(path_)) return false;
        continue;
      }
      require<DataError>(lock_.open(), "cannot open ", path_, ": ", last_errno);
      struct stat status {};
      // Before it was locked, it may have been taken for abandoned.
      if (!lock(lock_, LOCK_EX) || ::fstat(lock_.get(), &status) != 0 || status.st_nlink > 0) return true;
    }
  }

  std::string path_;
  Descriptor lock_;
  bool kept_ = false;
};

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

bool remove_abandoned_temporary(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat own {
  }, named{};
  // The name may be another file's by now: its writer then has renamed the first one.
  return file.open() && lock(file, LOCK_EX | LOCK_NB) && ::fstat(file.get(), &own) == 0 && S_ISREG(own.st_mode) &&
         ::lstat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino &&
         ::unlink(path.c_str()) == 0;
}

void write_atomically(const std::string& path, const std::vector<std::span<const std::byte>>& parts) {
  Temporary temporary(path);
  temporary.write(parts);
  temporary.rename_to(path);
  // fsync(2): without this the new name may be lost in a power failure although the file's bytes are on disk.
  const std::string folder = folder_of(path);
  File(folder, ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)).sync();
}

void write_atomically(const std::string& path, const std::string& text) {
  write_atomically(path, {std::as_bytes(std::span(text))});
}

void require_writable(const std::string& folder, std::size_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, "cannot make folder ", folder, ": ", error.message());
  require<DataError>(std::filesystem::is_directory(folder, error), folder, " is not a folder");
  Temporary probe((std::filesystem::path(folder) / ".duet").string());
  const std::vector<std::byte> zeros(std::min<std::size_t>(bytes, 1 << 20));
  std::vector<std::span<const std::byte>> parts;
  for (std::size_t done = 0; done < bytes; done += zeros.size())
    parts.push_back(std::span(zeros).first(std::min(zeros.size(), bytes - done)));
  probe.write(parts);
}

// A pipe without a writer would block the open.
FileReader::FileReader(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) {
  require<DataError>(file_.open(), "cannot open ", path_, ": ", last_errno);
  struct stat status {};
  require<DataError>(::fstat(file_.get(), &status) == 0, "cannot read ", path_, ": ", last_errno);
  require<DataError>(S_ISREG(status.st_mode), path_, " is not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void FileReader::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t step = ::read(file_.get(), out.data(), out.size());
    if (step < 0 && errno == EINTR) continue;
    require<DataError>(step >= 0, "cannot read ", path_, " at byte ", done_, ": ", last_errno);
    require<DataError>(step > 0, path_, " ended at byte ", done_, " of ", size_, " while it was read");
    out = out.subspan(static_cast<std::size_t>(step));
    done_ += static_cast<std::uint64_t>(step);
  }
}

}  // namespace duet
