// Errors with the part of the work in which they arose.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lib/error.h"

namespace duet {

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
