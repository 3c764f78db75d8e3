#include "lib/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lib/base/descriptor.h"
#include "lib/base/fault_point.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/folder.h"

namespace duet {
namespace {

constexpr const char* kProbe = ".duet";
/// A temporary file's name is the name of the file, this mark, and the number of the process that writes it.
constexpr std::string_view kTemporaryMark = ".tmp.";

Descriptor open_file(const std::string& path, int flags) {
  return Descriptor(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); }));
}

/// An open file; errors name it.
class File {
 public:
  File(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {
    require<DataError>(file_.open(), "cannot open ", path_, ": ", last_errno);
  }

  void write(std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t step =
          uninterrupted([&] { return ::write(file_.get(), bytes.data() + done, bytes.size() - done); });
      require<DataError>(step > 0, "cannot write ", path_, " after ", done, " of ", bytes.size(),
                         " bytes: ", errno_text(step < 0 ? errno : ENOSPC));
      done += static_cast<std::size_t>(step);
    }
  }

  void sync() {
    // Some file systems have nothing to sync for a folder and say EINVAL.
    require<DataError>(uninterrupted([&] { return ::fsync(file_.get()); }) == 0 || errno == EINVAL, "cannot sync ",
                       path_, ": ", last_errno);
  }

  void close() {
    // Interrupted, it is closed all the same, and its bytes are synced.
    require<DataError>(::close(file_.release()) == 0 || errno == EINTR, "cannot close ", path_, ": ", last_errno);
  }

 private:
  std::string path_;
  Descriptor file_;
};

/// Whether it did.
bool remove_abandoned(const std::string& path) {
  const Descriptor file = open_file(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
  // The name may be another file's by now: its writer then has renamed the first one.
  return file.open() && lock_file(file, LOCK_EX | LOCK_NB) && is_named(file, path) && ::unlink(path.c_str()) == 0;
}

/// A new file, removed unless it got another name. It is locked while this lives: the lock goes with the process, and
/// NFS shares it with other hosts. A file system without locks is used without them.
class Temporary {
 public:
  explicit Temporary(const std::string& start) {
    const std::string first = concat(start, kTemporaryMark, ::getpid());
    path_ = first;
    for (int taken = 1; !make(); ++taken) path_ = concat(first, ".", taken);
  }
  ~Temporary() {
    if (!gone_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(const std::vector<std::span<const std::byte>>& parts) {
    const HeldSizeSignal held;
    File file(path_,
              Descriptor(::fcntl(lock_.get(), F_DUPFD_CLOEXEC, 0)));  // closed before the lock goes: that may fail too
    for (const auto& part : parts) file.write(part);
    file.sync();
    file.close();
  }

  void rename_to(const std::string& path) {
    fault_point("rename");
    require<DataError>(::rename(path_.c_str(), path.c_str()) == 0, "cannot rename ", path_, " to ", path, ": ",
                       last_errno);
    gone_ = true;
  }

  void remove() {
    require<DataError>(::unlink(path_.c_str()) == 0, "cannot remove ", path_, ": ", last_errno);
    gone_ = true;
  }

 private:
  /// False where a running writer has the name: another thread, or a process of another host.
  bool make() {
    for (;;) {
      lock_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
      if (!lock_.open() && errno == EEXIST) {
        if (!remove_abandoned(path_)) return false;
        continue;
      }
      require<DataError>(lock_.open(), "cannot open ", path_, ": ", last_errno);
      struct stat status {};
      // Before it was locked, it may have been taken for abandoned.
      if (!lock_file(lock_, LOCK_EX) || ::fstat(lock_.get(), &status) != 0 || status.st_nlink > 0) return true;
    }
  }

  std::string path_;
  Descriptor lock_;
  bool gone_ = false;  // from path_
};

/// Whether this is the name of a Temporary, and begins with `start`.
bool is_temporary(std::string_view name, std::string_view start) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  return name.starts_with(start) && mark != name.npos &&
         name.find_first_not_of("0123456789.", mark + kTemporaryMark.size()) == name.npos;
}

}  // namespace

void remove_abandoned_temporaries(const std::string& folder, std::string_view start) {
  try {
    for (const std::string& name : list_folder(folder))
      if (is_temporary(name, start)) remove_abandoned((std::filesystem::path(folder) / name).string());
  } catch (const DataError&) {  // they stay for the next time
  }
}

void write_atomically(const std::string& path, const std::vector<std::span<const std::byte>>& parts) {
  Temporary temporary(path);
  temporary.write(parts);
  temporary.rename_to(path);
  // fsync(2): without this the new name may be lost in a power failure although the file's bytes are on disk.
  const std::string folder = folder_of(path);
  File(folder, open_file(folder, O_RDONLY | O_DIRECTORY)).sync();
  remove_abandoned_temporaries(folder, concat(std::filesystem::path(path).filename().string(), kTemporaryMark));
}

void write_atomically(const std::string& path, const std::string& text) {
  write_atomically(path, {std::as_bytes(std::span(text))});
}

void require_writable(const std::string& folder, std::size_t bytes) {
  make_folder(folder);
  remove_abandoned_temporaries(folder, kProbe);
  Temporary probe((std::filesystem::path(folder) / kProbe).string());
  const std::vector<std::byte> zeros(std::min<std::size_t>(bytes, 1 << 20));
  std::vector<std::span<const std::byte>> parts;
  for (std::size_t done = 0; done < bytes; done += zeros.size())
    parts.push_back(std::span(zeros).first(std::min(zeros.size(), bytes - done)));
  if (bytes > 0) probe.write(parts);
  probe.remove();
}

// A pipe without a writer would block the open.
FileReader::FileReader(std::string path)
    : path_(std::move(path)), file_(open_file(path_, O_RDONLY | O_NONBLOCK | O_NOCTTY)) {
  require<UnreadableFile>(file_.open(), "cannot open ", path_, ": ", last_errno);
  struct stat status {};
  require<UnreadableFile>(::fstat(file_.get(), &status) == 0, "cannot read ", path_, ": ", last_errno);
  require<DataError>(S_ISREG(status.st_mode), path_, " is not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void FileReader::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t step = uninterrupted([&] { return ::read(file_.get(), out.data(), out.size()); });
    require<UnreadableFile>(step >= 0, "cannot read ", path_, " at byte ", done_, ": ", last_errno);
    require<UnreadableFile>(step > 0, path_, " ended at byte ", done_, " of ", size_, " while it was read");
    out = out.subspan(static_cast<std::size_t>(step));
    done_ += static_cast<std::uint64_t>(step);
  }
}

}  // namespace duet
