// Sizes as CUDA's libraries and kernels take them.
#pragma once

#include <cstdint>
#include <limits>

#include "lib/backend/cuda/check.h"

namespace duet::cuda {

/// Throws ShapeError when `size` is past what an int holds.
inline int to_int(std::int64_t size, const char* what) {
  require<ShapeError>(size <= std::numeric_limits<int>::max(), "cuda: ", current_operator(), ": ", what, " is ", size,
                      ", expected at most ", std::numeric_limits<int>::max());
  return static_cast<int>(size);
}

}  // namespace duet::cuda
