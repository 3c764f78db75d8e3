// File descriptors: with an owner, 0, 1 and 2, and calls that signals interrupt or end.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
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

/// Wakes a thread that polls for it. Any thread may ring, also several times before the reset.
class Bell {
 public:
  /// False if the process has no descriptor left.
  bool open() const { return event_.open(); }
  int descriptor() const { return event_.get(); }
  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(descriptor(), &one, sizeof one);  // fails only if it has rung
  }
  void reset() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(descriptor(), &count, sizeof count);
  }

 private:
  Descriptor event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

namespace ddp {
using duet::Bell, duet::Descriptor;
}

/// Whether the standard output is a pipe or socket that nothing reads any more. A SIGPIPE alone does not say so: writes
/// to other closed connections send it, too. For signal handlers; may change errno.
inline bool output_is_closed() {
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

/// Makes a system call again for as long as it ends with -1 and EINTR, and gives its result. Not for close(): on Linux
/// the descriptor is closed then, too.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

/// While one lives, a call of this thread that would make a file too large fails with EFBIG, and SIGXFSZ does not end
/// the process. The signal's disposition, which is the program's, stays as it is.
class HeldSizeSignal {
 public:
  HeldSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~HeldSizeSignal() {
    const timespec none{};
    while (::sigtimedwait(&signal_, nullptr, &none) > 0) {  // what has come is told by the error
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSizeSignal(const HeldSizeSignal&) = delete;
  HeldSizeSignal& operator=(const HeldSizeSignal&) = delete;

 private:
  sigset_t signal_{}, before_{};
};

/// Reserves `bytes` of a file from `offset` on. Returns 0, or an error's number.
inline int reserve(const Descriptor& file, std::size_t offset, std::size_t bytes) {
  const HeldSizeSignal held;
  int failure = EINTR;
  while (failure == EINTR)
    failure = ::posix_fallocate(file.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return failure;
}

}  // namespace duet
