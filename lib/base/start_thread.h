// Starting threads and processes, with an error that says what could not be started and which limit it was.
#pragma once

#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace duet {

/// "cannot start WHAT: Resource temporarily unavailable (errno 11): ...". `error` is the errno of fork() or of a
/// thread's start; after EAGAIN which_thread_limit() follows it.
std::string cannot_start(std::string_view what, int error);

/// Throws Error with cannot_start().
[[noreturn]] void throw_no_thread(const std::string& what, const std::system_error& error);

/// Starts a thread that calls `body`. Throws Error.
template <class Body>
std::thread start_thread(const std::string& what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw_no_thread(what, error);
  }
}

/// The limit by which this process can start no more threads and processes, in words; as it is now.
std::string which_thread_limit();

}  // namespace duet
