#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// x (N, C, H, W) -> (N, C, P, Q); sizes are floored (7 -> 3). Ties send the gradient to the first maximum in row-major
/// order. Windows of at most 254 pixels, padding of at most half the kernel.
Variable max_pool2d(const Variable& x, const Window2d& window);

}  // namespace duet::ops
