#include <cstdlib>
#include <numeric>
#include <vector>

#include "tests/fake_cuda/gpu.h"

using namespace duet_test;

namespace {

constexpr int kThreads = 64;

/// Sums a block's numbers by halves. Barriers can be left out, to see that that is caught.
template <bool first, bool others>
__global__ void sum_by_halves(const float* x, float* sums) {
  __shared__ float part[kThreads];
  const unsigned t = threadIdx.x;
  part[t] = x[blockIdx.x * kThreads + t];
  if (first) __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    if (others) __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = part[0];
}

[[maybe_unused]] __global__ void first_of_four(const float* x, float* y) { *y = reinterpret_cast<const float4*>(x)->x; }

__global__ void sum_by_shuffles(const float* x, float* sums) {
  __shared__ float part[kThreads / 32];
  float value = x[blockIdx.x * kThreads + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0] + part[1];
}

__global__ void spread(float* x) {
  const float own = static_cast<float>(threadIdx.x);
  float value = own;
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  x[threadIdx.x] = value + __shfl_xor_sync(~0u, own, 1);
}

/// Half of the threads return before the barrier.
__global__ void early_exit(float* x) {
  if (threadIdx.x >= kThreads / 2) return;
  x[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < kThreads / 2; ++i) x[0] += x[i];
}

/// One thread faults, the others are at the barrier.
__global__ void fault_beside_barrier(float* x) {
  if (threadIdx.x == 5) x[1 << 20] = 1;
  __syncthreads();
}

__global__ void indices(float* x) {
  const unsigned i = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y +
                     threadIdx.y * blockDim.x + threadIdx.x;
  x[i] += static_cast<float>(i);
}

std::vector<float> numbers(int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

bool sums_right(void (*kernel)(const float*, float*)) {
  cudaStream_t stream = make_stream();
  const int blocks = 4;
  Buffer x(blocks * kThreads), sums(blocks);
  x.set(numbers(blocks * kThreads), stream);
  good(launch(kernel, blocks, kThreads, stream, x.data, sums.data));
  const auto got = sums.get(stream);
  good(cudaStreamDestroy(stream));
  for (int block = 0; block < blocks; ++block) {
    const int first = block * kThreads;
    if (got[static_cast<std::size_t>(block)] != static_cast<float>((first + first + kThreads - 1) * kThreads / 2))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("barriers and shuffles work, and a removed barrier is seen") {
  CHECK(wrong_seeds([] { return sums_right(sum_by_halves<true, true>); }) == 0);
  CHECK(wrong_seeds([] { return sums_right(sum_by_shuffles); }) == 0);
#ifndef __SANITIZE_THREAD__  // which reports the race, rightly
  CHECK(wrong_seeds([] { return sums_right(sum_by_halves<false, true>); }) >= 10);
  CHECK(wrong_seeds([] { return sums_right(sum_by_halves<true, false>); }) >= 10);
#endif
}

TEST_CASE("a shuffle's lanes and exits") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  Buffer x(kThreads);
  good(launch(spread, 1, 32, stream, x.data));
  const auto values = x.get(stream);
  CHECK(values[0] == 31 + 1);
  CHECK(values[7] == 31 + 6);
  good(cudaMemsetAsync(x.data, 0, kThreads * 4, stream));
  good(launch(early_exit, 1, kThreads, stream, x.data));
  CHECK(x.get(stream)[0] == kThreads / 2);
  good(cudaStreamDestroy(stream));
}

TEST_CASE("a fault of one thread ends the kernel, not the process") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  float* x;
  good(cudaMalloc(reinterpret_cast<void**>(&x), 64));
  good(launch(fault_beside_barrier, 2, kThreads, stream, x));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  duet_sim::reset(1);
  good(cudaFree(x));
  good(cudaStreamDestroy(stream));
}

TEST_CASE("every thread of every block runs once, with its indices") {
  const bool threads = GENERATE(false, true);
  if (threads) ::setenv("DUET_SIM_THREADS", "1", 1);
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  Buffer x(4 * 3 * 2 * 12);
  good(cudaMemsetAsync(x.data, 0, 4 * 3 * 2 * 12 * 4, stream));
  cudaLaunchConfig_t config{{4, 3, 2}, {4, 3}, 0, stream, nullptr, 0};
  good(cudaLaunchKernelEx(&config, indices, x.data));
  CHECK(x.get(stream) == numbers(4 * 3 * 2 * 12));
  CHECK(launch(indices, 1, 2000, stream, x.data) == cudaErrorInvalidConfiguration);
  CHECK(launch(indices, 0, 32, stream, x.data) == cudaErrorInvalidConfiguration);
  ::unsetenv("DUET_SIM_THREADS");
  good(cudaStreamDestroy(stream));
}

#if DUET_SIM_TRAPS  // the sanitizer of undefined behaviour finds it otherwise
TEST_CASE("a vector at an address that is not aligned is an error") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  Buffer x(8), y(1);
  x.set({1, 2, 3, 4, 5, 6, 7, 8}, stream);
  good(launch(first_of_four, 1, 1, stream, x.data + 4, y.data));
  CHECK(y.get(stream) == std::vector<float>{5});
  good(launch(first_of_four, 1, 1, stream, x.data + 2, y.data));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorMisalignedAddress);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("is not aligned"));
  duet_sim::reset(1);
  good(cudaStreamDestroy(stream));
}
#endif
