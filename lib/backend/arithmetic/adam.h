// One element of an Adam or AdamW update.
#pragma once

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// The numbers of a rule that are the same for all elements; computed in double, as PyTorch's Python code does.
struct AdamFactors {
  float keep = 1;   // of the value: 1 - lr * weight decay, of AdamW
  float decay = 0;  // weight decay that is added to the gradient, of Adam
  float take1 = 0;  // 1 - beta1
  float beta2 = 0, take2 = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
  float root = 1;       // sqrt(1 - beta2^step)
  float eps = 0;
};

/// torch.lerp: from a to b, by the formula that is exact at the nearer end.
template <class Fma>
DUET_HOST_DEVICE inline float lerp(float a, float b, float weight, Fma fma) {
  return weight < 0.5f ? fma(weight, b - a, a) : fma(weight - 1, b - a, b);
}

/// torch/optim/adam.py, _single_tensor_adam: m.lerp_(g, 1 - beta1); v.mul_(beta2).addcmul_(g, g, value=1 - beta2);
/// p.addcdiv_(m, v.sqrt() / root + eps, value=-step_size). `Fma` and `Sqrt` are the platform's.
template <class Fma, class Sqrt>
DUET_HOST_DEVICE inline void adam(float& value, float gradient, float& first, float& second, const AdamFactors& f,
                                  Fma fma, Sqrt root) {
  const float kept = value * f.keep;
  const float g = f.decay == 0 ? gradient : fma(f.decay, kept, gradient);
  const float m = lerp(first, g, f.take1, fma);
  const float v = fma(f.take2 * g, g, f.beta2 * second);
  first = m;
  second = v;
  value = fma(-f.step_size, m / (root(v) / f.root + f.eps), kept);
}

}  // namespace duet::arithmetic
