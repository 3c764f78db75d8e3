#include <atomic>
#include <thread>
#include <vector>

#include "tests/fake_cuda/gpu.h"

using namespace duet_test;

namespace {

/// x * 2 on one stream, then x + 1 on another; `wait` orders them.
bool two_streams(bool wait) {
  cudaStream_t first = make_stream(), second = make_stream();
  cudaEvent_t event = make_event();
  Buffer x(8);
  x.set(std::vector<float>(8, 1), first);
  good(launch(multiply, 1, 8, first, x.data, 8, 2.0f));
  good(cudaEventRecord(event, first));
  if (wait) good(cudaStreamWaitEvent(second, event));
  good(launch(add_number, 1, 8, second, x.data, 8, 1.0f));
  const auto values = x.get(second);
  good(cudaEventDestroy(event));
  good(cudaStreamDestroy(first));
  good(cudaStreamDestroy(second));
  return values == std::vector<float>(8, 3);
}

}  // namespace

TEST_CASE("a missing wait for an event shows as a wrong result") {
  CHECK(wrong_seeds([] { return two_streams(true); }) == 0);
  CHECK(wrong_seeds([] { return two_streams(false); }) >= 5);
}

TEST_CASE("work runs at a synchronisation, not before") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  float* pinned;
  good(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4));
  Buffer x(1);
  *pinned = 5;
  good(cudaMemcpyAsync(x.data, pinned, 4, cudaMemcpyHostToDevice, stream));
  *pinned = 6;  // pinned memory is read when the copy runs
  CHECK(x.get(stream) == std::vector<float>{6});
  float pageable = 7;
  good(cudaMemcpyAsync(x.data, &pageable, 4, cudaMemcpyHostToDevice, stream));
  pageable = 8;  // pageable memory was staged
  CHECK(x.get(stream) == std::vector<float>{7});
  good(cudaMemsetAsync(x.data, 0, 4, stream));
  cudaEvent_t event = make_event();
  good(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
  }
  good(cudaEventDestroy(event));
  good(cudaStreamDestroy(stream));
}

TEST_CASE("a host that does not wait for a copy to pinned memory reads old values") {
  const auto run = [](bool wait) {
    cudaStream_t stream = make_stream();
    float* pinned;
    good(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4));
    Buffer x(1);
    *pinned = 0;
    x.set({9}, stream);
    good(cudaMemcpyAsync(pinned, x.data, 4, cudaMemcpyDeviceToHost, stream));
    if (wait) good(cudaStreamSynchronize(stream));
    const float seen = *pinned;
    good(cudaStreamDestroy(stream));
    return seen == 9;
  };
  CHECK(wrong_seeds([&] { return run(true); }) == 0);
  CHECK(wrong_seeds([&] { return run(false); }) == 20);
}

TEST_CASE("copies between devices are ordered on one stream only") {
  const auto run = [](bool wait) {
    cudaStream_t a = make_stream(0);
    cudaEvent_t done = make_event();
    cudaStream_t b = make_stream(1);
    Buffer x(4, 0), y(4, 1);
    x.set({1, 2, 3, 4}, a);
    good(cudaMemcpyPeerAsync(y.data, 1, x.data, 0, 16, a));
    good(cudaEventRecord(done, a));
    if (wait) good(cudaStreamWaitEvent(b, done));
    const auto values = y.get(b);
    good(cudaEventDestroy(done));
    good(cudaStreamDestroy(a));
    good(cudaStreamDestroy(b));
    return values == std::vector<float>{1, 2, 3, 4};
  };
  CHECK(wrong_seeds([&] { return run(true); }) == 0);
  CHECK(wrong_seeds([&] { return run(false); }) >= 5);
}

TEST_CASE("threads of the host may enqueue and wait at once") {
  duet_sim::reset(1);
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int device = 0; device < 4; ++device)
    threads.emplace_back([&right, device] {
      cudaSetDevice(device);
      cudaStream_t stream;
      float* x;
      if (cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) || cudaMalloc((void**)&x, 4)) return;
      cudaMemsetAsync(x, 0, 4, stream);
      for (int i = 0; i < 50; ++i) launch(add_number, 1, 4, stream, x, 1, 1.0f);
      float sum = 0;
      cudaMemcpyAsync(&sum, x, 4, cudaMemcpyDeviceToHost, stream);
      right += sum == 50;
      cudaFree(x);
      cudaStreamDestroy(stream);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4);
  cudaSetDevice(0);
}

TEST_CASE("failures are injected at the n-th call, and those of kernels stay") {
  duet_sim::reset(1, "cudaMalloc:2,kernel:3,cudaGetDeviceCount:1:35");
  int count;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  good(cudaGetDeviceCount(&count));
  cudaStream_t stream = make_stream();
  float *x, *y;
  good(cudaMalloc(reinterpret_cast<void**>(&x), 4));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&y), 4) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  for (int i = 0; i < 3; ++i) good(launch(add_number, 1, 1, stream, x, 1, 1.0f));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK(cudaMalloc(reinterpret_cast<void**>(&y), 4) == cudaErrorLaunchFailure);
  cudaStream_t other = make_stream(1);  // other devices go on
  good(cudaStreamSynchronize(other));
  good(cudaStreamDestroy(other));
  duet_sim::reset(1);
  good(cudaSetDevice(0));
  good(cudaFree(x));
  good(cudaStreamDestroy(stream));
}
