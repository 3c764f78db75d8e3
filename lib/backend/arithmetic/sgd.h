// One element of an SGD update (torch.optim.SGD).
#pragma once

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// `keep` and `take` are the weights of the momentum buffer's old value and of the gradient: 0 and 1 in the first step,
/// else momentum and 1 - dampening. kPlain leaves out weight decay, dampening and Nesterov.
template <bool kPlain>
DUET_HOST_DEVICE inline void sgd_with_momentum(float& value, float gradient, float& buffer, float lr, float momentum,
                                               float keep, float take, float weight_decay, bool nesterov) {
  float g = gradient;
  if constexpr (!kPlain) g += weight_decay * value;
  const float b = keep * buffer + (kPlain ? g : take * g);
  buffer = b;
  if constexpr (!kPlain) g = nesterov ? g + momentum * b : b;
  value -= lr * (kPlain ? b : g);
}

DUET_HOST_DEVICE inline void sgd_without_momentum(float& value, float gradient, float lr, float weight_decay) {
  value -= lr * (gradient + weight_decay * value);
}

}  // namespace duet::arithmetic
