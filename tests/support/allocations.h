// Counts allocations of memory, by the calling library. A test program that wants it adds `allocation_counter` to its
// dependencies (tests/meson.build).
#pragma once

#include <string>

namespace duet_test {

/// What was allocated, in all threads, since the object was made; one object at a time. An allocation belongs to the
/// nearest code on the stack that is not a standard library: duet's (libduet, its modules, the test program) or a
/// vendor's (oneDNN, Gloo, OpenMP, ...). Counts operator new and, without sanitizers, malloc and its kin.
class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  /// Allocations that duet's code asked for.
  long own() const;
  /// Allocations inside vendor libraries.
  long vendor() const;
  /// Stack of the first of duet's allocations, one frame a line as "object+offset symbol"; "" when there was none.
  std::string first_own() const;
};

}  // namespace duet_test
