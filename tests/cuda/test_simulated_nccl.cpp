// NCCL failing behind a rank's back.
#include <future>
#include <latch>

#include "tests/cuda/nccl_ranks.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("simulated: NCCL failing on one rank ends all ranks, with operation and rank") {
  std::latch connected(3), injected(3);
  const auto failures = try_nccl_ranks(
      3,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        connected.arrive_and_wait();
        if (group.rank() == 0) duet_sim::reset(1, "ncclCommGetAsyncError:2:6");  // ncclRemoteError
        injected.arrive_and_wait();
        const Tensor x = zeros({1}, DType::f32, gpu_of(group.rank()));
        for (int step = 0; step < 1000; ++step) {
          group.all_reduce(x).wait();
          group.barrier().wait();
        }
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  duet_sim::reset(1);
  for (const std::string& failure : failures)
    CHECK_THAT(failure, ContainsSubstring("failed on rank ") && ContainsSubstring("NCCL: remote process exited"));
}

TEST_CASE("simulated: a GPU's fault ends all ranks, with operation and rank") {
  std::latch connected(2), injected(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        connected.arrive_and_wait();
        if (group.rank() == 0) duet_sim::reset(1, "cudaEventQuery:1:719");
        injected.arrive_and_wait();
        for (int step = 0; step < 1000; ++step) group.barrier().wait();
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  duet_sim::reset(1);
  for (const std::string& failure : failures)
    CHECK_THAT(failure, ContainsSubstring("barrier #") && ContainsSubstring("cuda: cudaEventQuery: unspecified"));
}

TEST_CASE("simulated: an error that NCCL finds while a collective waits for a rank ends all ranks") {
  std::latch failed(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        if (group.rank() == 1) failed.arrive_and_wait();
        if (group.rank() == 0) duet_sim::reset(1, "ncclCommGetAsyncError:10:3");  // ncclInternalError
        try {
          group.barrier().wait();
        } catch (...) {
          if (group.rank() == 0) failed.count_down();
          throw;
        }
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  duet_sim::reset(1);
  for (const std::string& failure : failures)
    CHECK_THAT(failure, ContainsSubstring("barrier #2 failed on rank 0: NCCL: internal error"));
}

TEST_CASE("simulated: an abort that takes long holds nobody up but the one who aborts") {
  std::promise<void> thrown;
  bool others_went_on = false;
  duet_sim::at_next_abort([&, told = thrown.get_future().share()] {
    others_went_on = told.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  });
  std::latch ended(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        if (group.rank() == 1) return ended.arrive_and_wait();
        try {
          group.barrier().wait();  // its thread waits, the watchdog aborts
        } catch (const CommError&) {
          thrown.set_value();
        }
        ended.arrive_and_wait();
      },
      [](int rank) {
        ddp::NcclOptions options = nccl_options(gpu_of(rank));
        options.group.timeout = std::chrono::milliseconds(300);
        return options;
      });
  CHECK(others_went_on);
}

TEST_CASE("simulated: NCCL failing among the GPUs of one process is an error that names the call") {
  const std::vector<Device> gpus = first_devices(DeviceKind::cuda, 2);
  std::vector<Tensor> parts;
  for (const Device gpu : gpus) parts.push_back(zeros({4}, DType::f32, gpu));
  Backend& cuda = backend(DeviceKind::cuda);
  duet_sim::reset(1, "ncclCommInitAll:1");
  CHECK_THROWS_WITH(cuda.all_reduce_devices(parts, parts, DeviceSum::nccl),
                    ContainsSubstring("cuda: ncclCommInitAll: NCCL: unhandled system error"));
  duet_sim::reset(1);
  CHECK_NOTHROW(cuda.all_reduce_devices(parts, parts, DeviceSum::nccl));
}
