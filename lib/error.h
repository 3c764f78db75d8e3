// The one family of exceptions that duet throws, and their prefixes: the part of the work in which they arose.
//
// Every message says what was got and what was expected. Programs print what() on one line and exit with 1,
// or with 2 for a UsageError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ios>
#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>
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

/// Refers to a value that can be streamed. It erases the value's type, so that concatenation is compiled once and not
/// for each list of types. The value must outlive it.
class TextPart {
 public:
  template <class T>
  requires(!std::is_array_v<T>)
      TextPart(const T& value)  // NOLINT(google-explicit-constructor): any argument of concat() becomes one
      : value_(&value), stream_([](std::ostream& out, const void* erased) { out << *static_cast<const T*>(erased); }) {}
  /// A literal. Not a template, which would be instantiated for each length.
  TextPart(const char* text)  // NOLINT(google-explicit-constructor)
      : value_(text), stream_([](std::ostream& out, const void* erased) { out << static_cast<const char*>(erased); }) {}
  /// A manipulator, such as std::oct.
  TextPart(std::ios_base& (&change)(std::ios_base&))  // NOLINT(google-explicit-constructor)
      : value_(reinterpret_cast<const void*>(&change)), stream_([](std::ostream& out, const void* erased) {
          out << reinterpret_cast<std::ios_base& (*)(std::ios_base&)>(const_cast<void*>(erased));
        }) {}
  friend std::ostream& operator<<(std::ostream& out, const TextPart& part) {
    part.stream_(out, part.value_);
    return out;
  }

 private:
  const void* value_;
  void (*stream_)(std::ostream&, const void*);
};

/// Streams `parts` into one string. Numbers read the same in every locale.
std::string concat_parts(std::initializer_list<TextPart> parts);
template <class... Parts>
std::string concat(const Parts&... parts) {
  return concat_parts({parts...});
}

/// Throws an `E` whose message is `parts` in a row. Out of line, so that a check costs its caller one jump.
template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void throw_parts(std::initializer_list<TextPart> parts) {
  throw E(concat_parts(parts));
}

/// Throws an `E` whose message is all `parts` in a row, unless the condition holds.
template <class E = Error, class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw_parts<E>({parts...});
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
