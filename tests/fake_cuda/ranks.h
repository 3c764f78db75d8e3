// NCCL's ranks as threads of a test.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "tests/fake_cuda/gpu.h"

namespace duet_test {

/// One rank; Catch2's macros are for the main thread, so a rank only answers whether all went well.
struct Rank {
  int rank = 0, size = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float *in = nullptr, *out = nullptr;  // 4 numbers a rank

  void set(float first) const {
    float values[16];
    for (int i = 0; i < 4 * size; ++i) values[i] = first + static_cast<float>(i);
    cudaMemcpyAsync(in, values, 16 * static_cast<std::size_t>(size), cudaMemcpyHostToDevice, stream);
    cudaMemsetAsync(out, 0, 16 * static_cast<std::size_t>(size), stream);
  }
  std::vector<float> get(int count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    cudaMemcpyAsync(values.data(), out, values.size() * 4, cudaMemcpyDeviceToHost, stream);
    return values;
  }
};

/// Runs `body` on `size` ranks, each a thread with its device. Returns how many returned true, or -1 if NCCL refused a
/// rank.
inline int ranks(
    int size, const std::function<bool(Rank&)>& body,
    const std::function<int(int)>& device = [](int rank) { return rank; }) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> right = 0;
  std::atomic<bool> refused = false;
  std::latch started(size);  // so that no rank's patience ends before another one's thread runs
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i)
    threads.emplace_back([&, i] {
      Rank rank{i, size};
      cudaSetDevice(device(i));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      started.arrive_and_wait();
      if (ncclCommInitRankConfig(&rank.comm, size, id, i, &config) != ncclSuccess) {
        refused = true;
        return;
      }
      cudaStreamCreateWithPriority(&rank.stream, cudaStreamNonBlocking, 0);
      const auto bytes = static_cast<std::size_t>(size) * 16;
      cudaMalloc(reinterpret_cast<void**>(&rank.in), bytes);
      cudaMalloc(reinterpret_cast<void**>(&rank.out), bytes);
      right += body(rank);
      cudaFree(rank.in);
      cudaFree(rank.out);
      cudaStreamDestroy(rank.stream);
    });
  for (std::thread& thread : threads) thread.join();
  return refused ? -1 : right.load();
}

/// An all_reduce as a graph.
inline cudaGraphExec_t captured(Rank& r, std::size_t count = 4) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal);
  ncclAllReduce(r.in, r.out, count, ncclFloat32, ncclSum, r.comm, r.stream);
  cudaStreamEndCapture(r.stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  return executable;
}

}  // namespace duet_test
