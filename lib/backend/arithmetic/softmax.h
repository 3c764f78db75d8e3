// One element of softmax, of log_softmax, of losses behind it, and of their gradients; the order of a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// In PyTorch's order: one shift of largest + log would lose the digits of the log for large inputs.
DUET_HOST_DEVICE inline float log_softmax(float x, float largest, float log_total) { return x - largest - log_total; }

/// y: the output, dy: its gradient, total: the sum of the row's dy.
DUET_HOST_DEVICE inline float log_softmax_gradient(float y, float dy, float total) { return dy - expf(y) * total; }

/// y: softmax's output, dy: its gradient, total: the sum of the row's y * dy.
DUET_HOST_DEVICE inline float softmax_gradient(float y, float dy, float total) { return y * (dy - total); }

/// Targets of a loss with label smoothing: `spread` for every class, `label` for that of the row.
struct SmoothedTarget {
  float label, spread;
};
DUET_HOST_DEVICE inline SmoothedTarget smoothed_target(float smoothing, std::int64_t classes) {
  const float spread = smoothing / static_cast<float>(classes);
  return {1 - smoothing + spread, spread};
}
/// The gradient of a logit behind log_softmax (its output: y), where the rows of the loss weigh `weight`.
DUET_HOST_DEVICE inline float smoothed_nll_gradient(float y, bool at_label, const SmoothedTarget& target,
                                                    float weight) {
  return (expf(y) - (at_label ? target.label : target.spread)) * weight;
}

/// Whether entry i of a row, of value a, stands before entry j, of value b, in the row sorted from the largest: a NaN
/// is larger than any number, and of equal entries the first stands first.
DUET_HOST_DEVICE inline bool stands_before(float a, std::int64_t i, float b, std::int64_t j) {
  if (a != a) return b == b || i < j;
  return a > b || (a == b && i < j);
}

/// The gradient of a logit behind log_softmax (its output: y) and nll_loss, whose gradient at the row's label is
/// `gradient`. The sum of the row's gradients adds it to a zero, which matters where it is a zero with a sign.
DUET_HOST_DEVICE inline float log_softmax_nll_gradient(float y, bool at_label, float gradient) {
  return log_softmax_gradient(y, at_label ? gradient : 0.0f, 0.0f + gradient);
}

}  // namespace duet::arithmetic
