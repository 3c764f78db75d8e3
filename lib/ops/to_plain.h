#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// x (N, C, H, W) in the plain layout; x itself if it is plain already.
Variable to_plain(const Variable& x);
/// x (N, C, H, W) in another layout of its backend.
Variable to_layout(const Variable& x, Layout layout);

}  // namespace duet::ops
