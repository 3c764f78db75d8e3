// One element of log_softmax and of its gradient.
#pragma once

#include <cmath>

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// In PyTorch's order: one shift of largest + log would lose the digits of the log for large inputs.
DUET_HOST_DEVICE inline float log_softmax(float x, float largest, float log_total) { return x - largest - log_total; }

/// y: the output, dy: its gradient, total: the sum of the row's dy.
DUET_HOST_DEVICE inline float log_softmax_gradient(float y, float dy, float total) { return dy - expf(y) * total; }

}  // namespace duet::arithmetic
