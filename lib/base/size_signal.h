// Files that outgrow the limit of their size (RLIMIT_FSIZE, ulimit -f): an error, in any program.
#pragma once

#include <fcntl.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <ctime>

#include "lib/base/descriptor.h"

namespace duet {

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
