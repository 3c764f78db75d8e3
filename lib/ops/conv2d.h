#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// Cross-correlation: x (N, C, H, W), w (K, C, R, S), b (K) or undefined -> (N, K, P, Q).
/// Throws ShapeError naming both shapes.
Variable conv2d(const Variable& x, const Variable& w, const Variable& b, const Window2d& window);

/// Checks the arguments of a convolution; shared with the fused operator.
void require_conv2d(const char* op, const Variable& x, const Variable& w, const Variable& b, const Window2d& window);
/// x in the layout that the backend's convolution reads when it writes `output`.
Variable conv2d_input(const Variable& x, Layout output);

}  // namespace duet::ops
