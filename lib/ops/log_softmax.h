#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// x - log(sum(exp(x))) along dimension 1: (N, C) -> (N, C).
Variable log_softmax(const Variable& x);

/// Puts log_softmax with the result y on the tape. Of its argument no value is read.
Variable record_log_softmax(const Tensor& y, const Variable& x);

/// Where the gradient of log_softmax's argument goes, if y is its result and on the tape; else null. A loss whose
/// gradient is known at the argument sends it there: gradients add up, so y may have other consumers.
const Edge* log_softmax_argument(const Variable& y);

}  // namespace duet::ops
