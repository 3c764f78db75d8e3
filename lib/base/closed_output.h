// Whether anything reads what a program prints.
#pragma once

#include <poll.h>
#include <unistd.h>

namespace duet {

/// Whether the standard output is a pipe or socket that nothing reads any more. A SIGPIPE alone does not say so: writes
/// to other closed connections send it, too. For signal handlers; may change errno.
inline bool output_is_closed() {
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace duet
