// One element of log_softmax and of its gradient.
#pragma once

#include <cmath>

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// In PyTorch's order: one shift of largest + log would lose the digits of the log for large inputs.
DUET_HOST_DEVICE inline float log_softmax(float x, float largest, float log_total) { return x - largest - log_total; }

/// y: the output, dy: its gradient, total: the sum of the row's dy.
DUET_HOST_DEVICE inline float log_softmax_gradient(float y, float dy, float total) { return dy - expf(y) * total; }

/// The gradient of a logit behind log_softmax (its output: y) and nll_loss, whose gradient at the row's label is
/// `gradient`. The sum of the row's gradients adds it to a zero, which matters where it is a zero with a sign.
DUET_HOST_DEVICE inline float log_softmax_nll_gradient(float y, bool at_label, float gradient) {
  return log_softmax_gradient(y, at_label ? gradient : 0.0f, 0.0f + gradient);
}

}  // namespace duet::arithmetic
