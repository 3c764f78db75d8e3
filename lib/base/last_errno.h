// Why a system call failed, as text.
#pragma once

#include <cerrno>
#include <ostream>
#include <string>
#include <system_error>

namespace duet {

/// "Too many open files (errno 24)".
inline std::string errno_text(int number) {
  return std::generic_category().message(number) + " (errno " + std::to_string(number) + ")";
}

/// Streams errno_text(errno) as errno is when it is written. An argument such as strerror(errno) may be evaluated
/// before the call that fails beside it, as in require(::pipe(...) == 0, ...).
struct LastErrno {};
inline constexpr LastErrno last_errno;
inline std::ostream& operator<<(std::ostream& out, LastErrno) {
  const int number = errno;
  return out << errno_text(number);
}

}  // namespace duet
