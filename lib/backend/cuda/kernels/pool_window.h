// For kernels only: the maximum of a pooling window.
#pragma once

#include "lib/backend/arithmetic.h"

namespace duet::cuda::kernels {

/// Takes a value of the window, at place `here`, if it is the new best.
__device__ inline void look_at(float value, int here, float& best, int& place) {
  if (!arithmetic::pool_wins(value, best)) return;
  best = value;
  place = here;
}

}  // namespace duet::cuda::kernels
