// For kernels only: operands of products as the precision takes them.
#pragma once

#include <cuda_bf16.h>

namespace duet::cuda::kernels {

/// The value, or the nearest bfloat16.
template <bool kRounds>
__device__ inline float operand(float value) {
  if constexpr (kRounds) return __bfloat162float(__float2bfloat16(value));
  return value;
}

}  // namespace duet::cuda::kernels
