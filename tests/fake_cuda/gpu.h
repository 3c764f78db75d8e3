// Shorthand for the simulator's tests.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/support/catch2.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_test {

inline void good(cudaError_t error) {
  INFO(cudaGetErrorString(error));
  REQUIRE(error == cudaSuccess);
}

inline cudaStream_t make_stream(int device = 0) {
  cudaStream_t stream;
  good(cudaSetDevice(device));
  good(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  return stream;
}

inline cudaEvent_t make_event() {
  cudaEvent_t event;
  good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

/// Memory of a device.
template <class T = float>
struct Buffer {
  explicit Buffer(std::size_t size, int on = 0) : count(size), device(on) {
    good(cudaSetDevice(device));
    good(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  }
  ~Buffer() {
    cudaSetDevice(device);
    cudaFree(data);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void set(const std::vector<T>& values, cudaStream_t stream) {
    good(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
  }
  std::vector<T> get(cudaStream_t stream) const {
    std::vector<T> values(count);
    good(cudaMemcpyAsync(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    return values;
  }

  std::size_t count;
  int device;
  T* data = nullptr;
};

template <class... E, class... A>
cudaError_t launch(void (*kernel)(E...), unsigned grid, unsigned block, cudaStream_t stream, A... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

/// Of 20 seeds, those with which `right` returns false.
template <class F>
int wrong_seeds(F&& right) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    duet_sim::reset(seed);
    wrong += right() ? 0 : 1;
  }
  duet_sim::reset(1);
  return wrong;
}

__global__ inline void add_number(float* x, int count, float number) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) x[i] += number;
}

__global__ inline void multiply(float* x, int count, float number) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) x[i] *= number;
}

}  // namespace duet_test
