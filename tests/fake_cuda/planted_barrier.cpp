// A barrier left out on purpose, which the thread sanitizer must report (meson.build runs this only under it).
#include <cuda_runtime.h>

#include <cstdio>

namespace {

__global__ void turn_around(float* x) {
  __shared__ float copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 0) x[64] = 0;
  __syncthreads();
  x[threadIdx.x] = copy[63 - threadIdx.x];
  copy[threadIdx.x] = 0;  // others may not have read theirs
}

}  // namespace

int main() {
  cudaStream_t stream;
  float* x;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
  cudaMalloc(reinterpret_cast<void**>(&x), 65 * sizeof *x);
  cudaLaunchConfig_t config{1, 64, 0, stream, nullptr, 0};
  cudaLaunchKernelEx(&config, turn_around, x);
  std::printf("%s\n", cudaGetErrorString(cudaStreamSynchronize(stream)));
  cudaFree(x);
  cudaStreamDestroy(stream);
}
