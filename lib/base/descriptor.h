// File descriptors: with an owner, and 0, 1 and 2.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace duet {

/// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed. Without it the next file or pipe gets such a
/// number, and what is printed goes there. For main(), before anything is opened.
inline void open_closed_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number)
    if (::fcntl(number, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // gets the lowest free number, which is this one
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  /// Gives it up without closing it.
  int release() { return std::exchange(number_, -1); }
  void close() {
    if (open()) ::close(release());
  }

 private:
  int number_ = -1;
};

namespace ddp {
using duet::Descriptor;
}

}  // namespace duet
