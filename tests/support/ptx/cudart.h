// libcudart as far as nvcc's objects and launches need it, on the interpreter: kernels run at once, streams are
// ignored.
#pragma once

#include <string>
#include <vector>

#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/memory.h"

namespace duet_ptx {

/// The only device.
struct Device {
  Memory memory;
  Options options;
  Findings findings;
  Statistics statistics;
};
Device& device();

}  // namespace duet_ptx
