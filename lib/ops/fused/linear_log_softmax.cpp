#include "lib/ops/fused/linear_log_softmax.h"

#include "lib/ops/linear.h"
#include "lib/ops/log_softmax.h"
#include "lib/ops/record.h"

namespace duet::ops {

Variable linear_log_softmax(const Variable& x, const Variable& w, const Variable& b) {
  if (checks_finite()) return log_softmax(linear(x, w, b));
  require_linear("linear_log_softmax", x, w, b);
  const Tensor y = linear_output(x, w);
  backend(y).linear_log_softmax_forward(x.value(), w.value(), b.defined() ? b.value() : Tensor(), y);
  return record_log_softmax(y, record_linear(y, x, w, b));
}

}  // namespace duet::ops
