#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// x - log(sum(exp(x))) along dimension 1: (N, C) -> (N, C).
Variable log_softmax(const Variable& x);

}  // namespace duet::ops
