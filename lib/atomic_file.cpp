#include "lib/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lib/error.h"
#include "lib/fault_point.h"
#include "lib/last_errno.h"

namespace duet {
namespace {

/// An open file that closes itself when an exception passes.
class File {
 public:
  File(std::string path, int flags)
      : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags | O_CLOEXEC, 0644)) {
    require<DataError>(descriptor_ >= 0, "cannot open ", path_, ": ", last_errno);
  }
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }

  void write(std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t step = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (step < 0 && errno == EINTR) continue;
      require<DataError>(step > 0, "cannot write ", path_, " after ", done, " of ", bytes.size(),
                         " bytes: ", errno_text(step < 0 ? errno : ENOSPC));
      done += static_cast<std::size_t>(step);
    }
  }

  void sync() {
    // Some file systems have nothing to sync for a folder and say EINVAL.
    require<DataError>(::fsync(descriptor_) == 0 || errno == EINVAL, "cannot sync ", path_, ": ", last_errno);
  }

  void close() {
    const int descriptor = std::exchange(descriptor_, -1);
    require<DataError>(::close(descriptor) == 0, "cannot close ", path_, ": ", last_errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

/// A name that is removed from the folder unless it was kept.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {
    // Left by a process that had our number and died; O_EXCL would refuse it, and a link must not be followed.
    ::unlink(path_.c_str());
  }
  ~Temporary() {
    if (!kept_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::string& path() const { return path_; }

  void rename_to(const std::string& path) {
    fault_point("rename");
    require<DataError>(::rename(path_.c_str(), path.c_str()) == 0, "cannot rename ", path_, " to ", path, ": ",
                       last_errno);
    kept_ = true;
  }

 private:
  std::string path_;
  bool kept_ = false;
};

std::string process_suffix() { return ".tmp." + std::to_string(::getpid()); }

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void write_atomically(const std::string& path, const std::vector<std::span<const std::byte>>& parts) {
  Temporary temporary(path + process_suffix());
  File file(temporary.path(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  for (const auto& part : parts) file.write(part);
  file.sync();
  file.close();
  temporary.rename_to(path);
  // fsync(2): without this the new name may be lost in a power failure although the file's bytes are on disk.
  File folder(folder_of(path), O_RDONLY | O_DIRECTORY);
  folder.sync();
}

void write_atomically(const std::string& path, const std::string& text) {
  write_atomically(path, {std::as_bytes(std::span(text))});
}

void require_writable(const std::string& folder, std::size_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, "cannot make folder ", folder, ": ", error.message());
  require<DataError>(std::filesystem::is_directory(folder, error), folder, " is not a folder");
  Temporary probe((std::filesystem::path(folder) / (".duet" + process_suffix())).string());
  File file(probe.path(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  const std::vector<std::byte> zeros(std::min<std::size_t>(bytes, 1 << 20));
  for (std::size_t done = 0; done < bytes; done += zeros.size())
    file.write(std::span(zeros).first(std::min(zeros.size(), bytes - done)));
  file.sync();
  file.close();
}

std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t limit) {
  // A pipe without a writer would block the open.
  File file(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  require<DataError>(::fstat(file.descriptor(), &status) == 0, "cannot read ", path, ": ", last_errno);
  require<DataError>(S_ISREG(status.st_mode), path, " is not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  require<DataError>(size <= limit, path, " holds ", size, " bytes, expected at most ", limit);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t step = ::read(file.descriptor(), bytes.data() + done, bytes.size() - done);
    if (step < 0 && errno == EINTR) continue;
    require<DataError>(step >= 0, "cannot read ", path, " at byte ", done, ": ", last_errno);
    require<DataError>(step > 0, path, " ended at byte ", done, " of ", size, " while it was read");
    done += static_cast<std::size_t>(step);
  }
  return bytes;
}

}  // namespace duet
