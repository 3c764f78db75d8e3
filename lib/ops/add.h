#pragma once

#include "lib/autograd/variable.h"

namespace duet::ops {

/// a + b, of the same shape.
Variable add(const Variable& a, const Variable& b);

}  // namespace duet::ops
