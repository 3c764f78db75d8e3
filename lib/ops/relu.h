#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// max(x, 0), any shape; the derivative at 0 is 0. A NaN stays one and passes its gradient, as in PyTorch.
Variable relu(const Variable& x);

}  // namespace duet::ops
