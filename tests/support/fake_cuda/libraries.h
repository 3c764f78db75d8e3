// Shared by the stand-ins for cuDNN and cuBLAS: numbers in and out of device memory, rounded as tensor cores round
// them.
#pragma once

#include <cuda_bf16.h>

#include <cstring>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {

enum class Rounding { none, tf32, bf16 };

inline float rounded(float x, Rounding rounding) {
  if (rounding == Rounding::none || x != x) return x;
  if (rounding == Rounding::bf16) return __bfloat162float(__float2bfloat16(x));
  std::uint32_t bits;  // TF32 has 10 bits of mantissa; to nearest, ties away from zero, as cvt.rna
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x1000) & ~0x1FFFu;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

inline std::vector<float> load(const void* from, bool bf16, std::size_t count, Rounding rounding) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = rounded(
        bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]) : static_cast<const float*>(from)[i],
        rounding);
  return values;
}

/// to[at] = alpha * value + beta * to[at]; with beta 0 the old value is not read.
inline void store(void* to, bool bf16, std::size_t at, float value, float alpha, float beta) {
  auto* halves = static_cast<__nv_bfloat16*>(to);
  auto* floats = static_cast<float*>(to);
  value *= alpha;
  if (beta != 0) value += beta * (bf16 ? __bfloat162float(halves[at]) : floats[at]);
  if (bf16)
    halves[at] = __float2bfloat16(value);
  else
    floats[at] = value;
}

/// Queues a library's work on its handle's stream; false when the call is refused, which is reported.
bool queue_library_call(const char* name, int device, cudaStream_t stream, std::vector<const void*> pointers,
                        std::function<void()> body);
/// For calls that make handles: they allocate. False when refused.
bool begin_library(const char* name);
/// Whether a stream may be given to a handle of a device.
bool stream_of_device(cudaStream_t stream, int device);

}  // namespace duet_sim
