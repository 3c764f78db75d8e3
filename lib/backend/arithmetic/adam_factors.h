// The numbers of an Adam update that are the same for all elements. Apart from adam.h, because the kernels of each
// instruction set include that one.
#pragma once

#include <cmath>

#include "lib/backend/arithmetic/adam.h"
#include "lib/backend/backend.h"

namespace duet::arithmetic {

inline AdamFactors factors_of(const AdamRule& rule) {
  const auto step = static_cast<double>(rule.step);
  return {.keep = static_cast<float>(rule.decoupled ? 1 - rule.lr * rule.weight_decay : 1),
          .decay = static_cast<float>(rule.decoupled ? 0 : rule.weight_decay),
          .take1 = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .take2 = static_cast<float>(1 - rule.beta2),
          .step_size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, step))),
          .root = static_cast<float>(std::sqrt(1 - std::pow(rule.beta2, step))),
          .eps = static_cast<float>(rule.eps)};
}

}  // namespace duet::arithmetic
