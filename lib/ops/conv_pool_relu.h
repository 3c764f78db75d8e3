#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// dropout(relu(max_pool2d(conv2d(x, w, b)))) in one operator: the same values and gradients as the four operators,
/// with less memory traffic. x (N, C, H, W), w (K, C, R, S), b (K) -> (N, K, P, Q), plain if `plain_output`, else in
/// the layout that the backend's next convolution likes. Pool windows must tile: stride = kernel, no padding, at most
/// 254 pixels. With op.dropout.p = 0 nothing is dropped.
Variable conv_pool_relu(const Variable& x, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output = false);

}  // namespace duet::ops
