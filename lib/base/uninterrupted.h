// System calls that a signal interrupts.
#pragma once

#include <cerrno>

namespace duet {

/// Makes a system call again for as long as it ends with -1 and EINTR, and gives its result. Not for close(): on Linux
/// the descriptor is closed then, too.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace duet
