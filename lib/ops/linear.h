#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// x w^T + b: x (N, I), w (O, I), b (O) or undefined -> (N, O).
Variable linear(const Variable& x, const Variable& w, const Variable& b);

/// Checks the arguments of a linear layer; shared with the fused operator.
void require_linear(const char* op, const Variable& x, const Variable& w, const Variable& b);

}  // namespace duet::ops
