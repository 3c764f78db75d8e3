// Ranks over NCCL as threads, each with a GPU of its own.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/transport/modules.h"
#include "lib/monotonic.h"
#include "lib/tensor.h"
#include "tests/cuda/gpu.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

/// A test case that is skipped where NCCL cannot be used with so many GPUs.
#define DUET_NCCL_TEST(gpus, ...) DUET_TEST_UNLESS(duet_test::why_no_nccl(gpus), __VA_ARGS__)

namespace duet_test {

inline std::string why_no_nccl(int gpus) {
  if (std::string no_cuda = duet::why_no_cuda(); !no_cuda.empty()) return no_cuda;
  if (std::string no_nccl = duet::ddp::why_no_nccl(); !no_nccl.empty()) return no_nccl;
  return duet::backend(duet::DeviceKind::cuda).device_count() < gpus ? "too few GPUs" : "";
}

inline duet::Device gpu_of(int rank) { return {duet::DeviceKind::cuda, rank}; }

inline duet::ddp::ConnectOptions nccl_options(duet::Device device) {
  return {.connect_timeout = std::chrono::seconds(60),
          .group = {.timeout = std::chrono::seconds(60), .leave_timeout = std::chrono::seconds(20)},
          .device = device};
}

/// Retries what fails by an error, until a test waits for a hang.
inline void repeat_until_it_fails(const std::function<void()>& body) {
  const auto end = duet::Clock::now() + std::chrono::seconds(60);
  while (duet::Clock::now() < end) body();
}

using RankOptions = std::function<duet::ddp::ConnectOptions(int rank)>;

/// nccl_options() with other timeouts of the group.
inline RankOptions with_timeout(std::chrono::milliseconds timeout,
                                std::chrono::milliseconds leave_timeout = std::chrono::seconds(20)) {
  return [=](int rank) {
    duet::ddp::ConnectOptions options = nccl_options(gpu_of(rank));
    options.group.timeout = timeout;
    options.group.leave_timeout = leave_timeout;
    return options;
  };
}

inline duet::Tensor one_on(int rank) { return duet::zeros({1}, duet::DType::f32, gpu_of(rank)); }

/// Runs `body` as `size` ranks, of which only the first `present` exist, and returns what each of them threw.
inline std::vector<std::string> try_nccl_ranks(int size, const std::function<void(ProcessGroup&)>& body,
                                               const RankOptions& options, int present = -1) {
  const auto store = std::make_shared<duet::ddp::MemoryStore>();
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < (present < 0 ? size : present); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = duet::ddp::make_nccl_group(store, rank, size, options(rank));
        body(*group);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = text_of(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// As try_nccl_ranks; no rank may fail.
inline void run_nccl_ranks(int size, const std::function<void(ProcessGroup&)>& body) {
  const auto options = [](int rank) { return nccl_options(gpu_of(rank)); };
  for (const std::string& failure : try_nccl_ranks(size, body, options)) CHECK(failure == "");
}

}  // namespace duet_test
