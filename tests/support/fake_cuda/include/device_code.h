// What CUDA's compiler provides without a header: qualifiers, built-in variables, vectors and intrinsics of device
// code.
#pragma once

#include <math.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// One block of one kernel runs at a time in a process.
#define __shared__ static

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

// Set by the grid executor for each CUDA thread that it runs; constinit: read without a call.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace duet_sim {

void block_barrier();
/// Gives `bits` to the warp and returns those of lane `source`; all ones when that lane takes no part.
std::uint64_t shuffle(unsigned mask, std::uint64_t bits, unsigned source);
unsigned lane();

}  // namespace duet_sim

inline void __syncthreads() { duet_sim::block_barrier(); }
inline void __syncwarp() { duet_sim::shuffle(0xFFFFFFFFu, 0, duet_sim::lane()); }
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = duet_sim::shuffle(mask, bits, duet_sim::lane() ^ static_cast<unsigned>(lane_mask));
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
