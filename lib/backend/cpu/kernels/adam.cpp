#include "lib/backend/arithmetic/adam.h"

#include <cstdint>

#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {

void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& factors) {
  const arithmetic::AdamFactors f = factors;
  for (std::int64_t i = 0; i < n; ++i)
    arithmetic::adam(
        value[i], gradient[i], first[i], second[i], f, [](float a, float b, float c) { return fma(a, b, c); },
        [](float x) { return __builtin_sqrtf(x); });
}

}  // namespace duet::cpu::DUET_ISA
