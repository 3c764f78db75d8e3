// What CUDA's compiler knows without a header: qualifiers, built-in variables, vectors and intrinsics of device code.
#pragma once

#include <math.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __constant__ static
#define __launch_bounds__(...)
// One block of one kernel runs at a time in a process.
#define __shared__ static
#define warpSize 32

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
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(4) uchar4 {
  unsigned char x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }

// Set by the grid executor for each CUDA thread that it runs; constinit: read without a call.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace duet_sim {

void block_barrier();
void warp_barrier(unsigned mask);
/// Gives `bits` to the warp and returns those of lane `source`; all ones when that lane takes no part.
std::uint64_t shuffle(unsigned mask, std::uint64_t bits, unsigned source);
unsigned lane();

template <class T>
T shuffle_from(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace duet_sim

inline void __syncthreads() { duet_sim::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { duet_sim::warp_barrier(mask); }
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned w = static_cast<unsigned>(width);
  return duet_sim::shuffle_from(mask, value, duet_sim::lane() / w * w + static_cast<unsigned>(source) % w);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = duet_sim::lane(), w = static_cast<unsigned>(width);
  return duet_sim::shuffle_from(mask, value, lane % w + delta < w ? lane + delta : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const unsigned lane = duet_sim::lane(), w = static_cast<unsigned>(width),
                 other = lane ^ static_cast<unsigned>(lane_mask);
  return duet_sim::shuffle_from(mask, value, other / w <= lane / w ? other : lane);
}

template <class T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <class T>
T atomicExch(T* address, T value) {
  return std::atomic_ref<T>(*address).exchange(value);
}
template <class T>
T atomicMax(T* address, T value) {
  std::atomic_ref<T> place(*address);
  T old = place.load();
  while (old < value && !place.compare_exchange_weak(old, value)) {
  }
  return old;
}

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
template <class T>
T __ldg(const T* address) {
  return *address;
}
