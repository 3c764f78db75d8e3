#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// dropout(relu(max_pool2d(conv2d(x, w, b)))) in one operator: the same values and gradients as the four operators,
/// with less memory traffic. x (N, C, H, W), w (K, C, R, S), b (K) -> (N, K, P, Q), plain if `plain_output`, else in
/// the layout that the backend's next convolution likes. Pool windows must tile: stride = kernel, no padding, at most
/// 254 pixels. With op.dropout.p = 0 nothing is dropped.
///
/// Numbers that are not finite differ on CPU where its own kernels run (3x3 convolutions, 2x2 pools): a window that has
/// one among the 4x4 pixels below it, or an infinite weight, may give NaN where the four operators give a finite or
/// infinite number, never the reverse. Everywhere, gradients leave out the products with outputs that relu or dropout
/// stopped: the four operators make NaN of zero times infinity, and of a gradient that is not finite where dropout
/// drops. A CheckFinite reports each of these: the image, weight, bias or gradient itself, in the step where it arises.
Variable conv_pool_relu(const Variable& x, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output = false);

}  // namespace duet::ops
