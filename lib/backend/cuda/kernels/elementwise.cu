// Elementwise operators: a thread for each element.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) relu_kernel(const float* x, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = arithmetic::relu_stops(x[i]) ? 0.0f : x[i];
}

__global__ void __launch_bounds__(kThreads)
    relu_backward_kernel(const float* y, const float* dy, float* dx, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) dx[i] = arithmetic::relu_stops(y[i]) ? 0.0f : dy[i];
}

__global__ void __launch_bounds__(kThreads) add_kernel(const float* a, const float* b, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = a[i] + b[i];
}

__global__ void __launch_bounds__(kThreads) mul_kernel(const float* a, const float* b, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = a[i] * b[i];
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, float factor, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) x[i] *= factor;
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* x, float value, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) x[i] = value;
}

__global__ void __launch_bounds__(kThreads)
    mask_scale_kernel(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = x[i] * (mask[i] ? factor : 0.0f);
}

}  // namespace

void relu(const float* x, float* y, std::int64_t n, cudaStream_t stream) {
  launch(relu_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, y, n);
}

void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n, cudaStream_t stream) {
  launch(relu_backward_kernel, blocks_for(n), dim3(kThreads), 0, stream, y, dy, dx, n);
}

void add(const float* a, const float* b, float* y, std::int64_t n, cudaStream_t stream) {
  launch(add_kernel, blocks_for(n), dim3(kThreads), 0, stream, a, b, y, n);
}

void mul(const float* a, const float* b, float* y, std::int64_t n, cudaStream_t stream) {
  launch(mul_kernel, blocks_for(n), dim3(kThreads), 0, stream, a, b, y, n);
}

void scale(float* x, float factor, std::int64_t n, cudaStream_t stream) {
  launch(scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, factor, n);
}

void fill(float* x, float value, std::int64_t n, cudaStream_t stream) {
  launch(fill_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, value, n);
}

void mask_scale(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n, cudaStream_t stream) {
  launch(mask_scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, mask, factor, y, n);
}

}  // namespace duet::cuda::kernels
