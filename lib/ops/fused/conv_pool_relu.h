#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// dropout(relu(max_pool2d(conv2d(x, w, b)))) in one operator: the same values and gradients as the four operators,
/// with less memory traffic. x (N, C, H, W), w (K, C, R, S), b (K) -> (N, K, P, Q), plain if `plain_output`, else in
/// the layout that the backend's next convolution likes. Pool windows must tile: stride = kernel, no padding, at most
/// 254 pixels. With op.dropout.p = 0 nothing is dropped.
///
/// Numbers that are not finite: where dropout drops, a gradient is stopped even if it is infinite or NaN; the four
/// operators make NaN of it. The CPU's own kernels (3x3 convolutions, 2x2 pools) differ in more. A window that has such
/// a number among the 4x4 pixels below it, and a channel that has such a weight, may be NaN where the four operators
/// give another value, but is never finite where theirs is not. Gradients leave out products with outputs that relu or
/// dropout stopped, so dx and dw may be finite where zero times infinity makes the four operators' NaN, or the reverse.
/// A CheckFinite reports all of these: the image, weight, bias or gradient itself.
Variable conv_pool_relu(const Variable& x, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output = false);

/// Whether conv_pool_relu takes this pool: its windows tile.
bool pool_tiles(const Window2d& pool);

}  // namespace duet::ops
