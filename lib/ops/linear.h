#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// x w^T + b: x (N, I), w (O, I), b (O) or undefined -> (N, O).
Variable linear(const Variable& x, const Variable& w, const Variable& b);

// Shared with the fused operators.
/// Checks the arguments of a linear layer.
void require_linear(const char* op, const Variable& x, const Variable& w, const Variable& b);
/// Room for its output, with the stamp of x.
Tensor linear_output(const Variable& x, const Variable& w);
/// Puts a linear layer on the tape. Its backward reads its arguments only, so the value may be anything.
Variable record_linear(const Tensor& value, const Variable& x, const Variable& w, const Variable& b);

}  // namespace duet::ops
