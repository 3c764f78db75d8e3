#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// (N, ...) -> (N, the rest multiplied), in plain order. Copies only if x is not plain.
Variable flatten(const Variable& x);

}  // namespace duet::ops
