#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// log_softmax(linear(x, w, b)) in one operator: the same values and gradients, on CPU to the last bit, and the same
/// tape; the logits are not kept. x (N, I), w (C, I), b (C) or undefined -> (N, C). While a CheckFinite lives the two
/// run one by one, so that its error names the right one.
Variable linear_log_softmax(const Variable& x, const Variable& w, const Variable& b);

}  // namespace duet::ops
