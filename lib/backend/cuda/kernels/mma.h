// For kernels only: products of small matrices on tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lib/backend/cuda/kernels/reduce.h"

namespace duet::cuda::kernels {

__device__ inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ inline float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Adds half a unit to what tensor cores leave out of a number, its lower 13 bits: these then take the nearest TF32
/// number, ties away from zero. Infinity stays that, and the sum gives NaN a bit that is not left out.
__device__ inline float to_tf32(float value) {
  return fabsf(value) < INFINITY ? float_of(bits_of(value) + 0x1000u) : value + value;
}

/// sum (16, 8) += a (16, 8) b (8, 8), of TF32 numbers, by a whole warp. Lane 4 g + t has a(g, t), a(g + 8, t),
/// a(g, t + 4), a(g + 8, t + 4); b(t, g), b(t + 4, g); and of the sum (g, 2 t), (g, 2 t + 1) and those of row g + 8.
/// PTX ISA, mma.m16n8k8.
__device__ inline void multiply_add(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(bits_of(a[0])), "r"(bits_of(a[1])), "r"(bits_of(a[2])), "r"(bits_of(a[3])), "r"(bits_of(b[0])),
        "r"(bits_of(b[1])));
#else  // on simulated devices
  constexpr unsigned kMostThreads = 1024;
  __shared__ float operands[kMostThreads][6];
  float* const own = operands[threadIdx.x];
  for (int k = 0; k < 6; ++k) own[k] = float_of(bits_of(k < 4 ? a[k] : b[k - 4]) & ~0x1fffu);
  __syncwarp();
  const unsigned lane = threadIdx.x % kWarp, first = threadIdx.x - lane, row = first + lane / 4 * 4,
                 column = first + lane % 4 * 8;
  for (unsigned k = 0; k < 8; ++k)
    for (unsigned part = 0; part < 4; ++part)
      sum[part] += operands[row + k % 4][k / 4 * 2 + part / 2] * operands[column + part % 2 * 4 + k % 4][4 + k / 4];
  __syncwarp();
#endif
}

}  // namespace duet::cuda::kernels
