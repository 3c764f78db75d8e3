#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

/// dropout(relu(linear(x, w, b)), key) in one operator: the same values and gradients as the three operators, on CPU to
/// the last bit, without passes of their own over the activations. x (N, I), w (O, I), b (O) or undefined -> (N, O).
/// With key.p = 0 nothing is dropped.
///
/// Of what is not finite, two gradients differ from those of the three operators where dropout drops: an output that is
/// NaN (of a sum that is NaN or infinite) passes its gradient times the scale, not times 0; and a gradient that is not
/// finite becomes 0, not NaN. While a CheckFinite lives the three run one by one: relu would hide a sum that is
/// -infinity.
Variable linear_relu_dropout(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key);

}  // namespace duet::ops
