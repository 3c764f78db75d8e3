// The one family of exceptions that duet throws, and their prefixes: the part of the work in which they arose.
//
// Every message says what was got and what was expected. Programs print what() on one line and exit with 1,
// or with 2 for a UsageError.
#pragma once

#include <cstdint>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/monotonic.h"

namespace duet {

/// The parts of an error that stay when its text gets a prefix.
struct ErrorOrigin {
  std::int64_t when = monotonic_ns();
  bool in_layer = false;  // the text says which layer of a model it arose in
};

/// Base of all duet exceptions. `when()` is the time of the failed check by CLOCK_MONOTONIC in ns: what is reported
/// later, after unwinding has cost other ranks a peer, still counts as the earlier.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, const ErrorOrigin& origin = {})
      : std::runtime_error(message), origin_(origin) {}
  const ErrorOrigin& origin() const { return origin_; }
  std::int64_t when() const { return origin_.when; }

 private:
  ErrorOrigin origin_;
};

/// A tensor has another shape, dtype or layout than the operation needs.
class ShapeError : public Error {
  using Error::Error;
};
/// A device is unknown, absent, out of memory, or not the one an operation expected.
class DeviceError : public Error {
  using Error::Error;
};
/// Communication between ranks failed: a peer failed, a timeout fired, a store or port was not reachable.
class CommError : public Error {
  using Error::Error;
};
/// A file (data set, checkpoint, report) is missing, damaged, or not what it claims to be.
class DataError : public Error {
  using Error::Error;
};
/// A result is infinite or not a number where that was asked to be an error.
class NumericError : public Error {
  using Error::Error;
};
/// An option or argument has a value that makes no sense.
class UsageError : public Error {
  using Error::Error;
};

/// Streams `parts` into one string, numbers alike in every locale.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

/// Throws an `E` whose message is all `parts` in a row, unless the condition holds.
template <class E = Error, class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw E(concat(parts...));
}

/// Within a handler: throws what it handles again, with `prefix` in front of its text. duet's errors keep their type
/// and origin; other standard exceptions become an Error with theirs nested in it; all else is thrown as it is.
/// `in_layer`: the prefix names a layer.
[[noreturn]] void rethrow_with_prefix(const std::string& prefix, bool in_layer = false);

/// Runs task; what it throws gets prefix() as above.
template <class Prefix, class Task>
auto with_prefix(Prefix&& prefix, Task&& task) {
  try {
    return std::forward<Task>(task)();
  } catch (...) {
    rethrow_with_prefix(prefix());
  }
}

}  // namespace duet
