// A file for code that takes a path, without a disk.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/fuzz/input.h"

namespace duet_fuzz {

class MemoryFile {
 public:
  MemoryFile() : file_(::memfd_create("duet-rank-fuzz", MFD_CLOEXEC)) {
    expect(file_ >= 0 && ::fchmod(file_, 0600) == 0, "a file in memory");
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::string_view content) {
    const bool wrote = ::ftruncate(file_, 0) == 0 &&
                       ::pwrite(file_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size());
    expect(wrote, "room for a file in memory");
  }
  std::string read() const {
    struct stat status {};
    expect(::fstat(file_, &status) == 0, "a file's size");
    std::string content(static_cast<std::size_t>(status.st_size), '\0');
    expect(::pread(file_, content.data(), content.size(), 0) == status.st_size, "a file's content");
    return content;
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace duet_fuzz
