// NCCL failing behind a rank's back, and ranks that share a GPU.
#include <net/if.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/init.h"
#include "ddp/store/network.h"
#include "lib/backend/step_graph.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_cuda/simulator.h"
#include "tests/support/few_threads.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr const char* kNcclInterface = "NCCL_SOCKET_IFNAME";

/// What the ranks of a job on this host threw; in NCCL_SOCKET_IFNAME stays what NCCL found there.
std::vector<std::string> meet_over_nccl() {
  const Scratch scratch;
  std::vector<std::string> failures(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] = error_of<Error>([&] {
        ddp::init_process_group({.backend = "nccl",
                                 .init_method = "file://" + scratch.path("store"),
                                 .rank = rank,
                                 .world_size = 2,
                                 .device = gpu_of(rank)})
            ->barrier()
            .wait();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// Not loopback, where this host has another one that is up.
std::string some_interface() {
  std::string found = ddp::loopback_interface();
  struct if_nameindex* const all = ::if_nameindex();
  for (const struct if_nameindex* one = all; one != nullptr && one->if_name != nullptr; ++one) {
    try {
      ddp::address_of(one->if_name);
      found = one->if_name;
    } catch (const UsageError&) {  // it is down
    }
  }
  ::if_freenameindex(all);
  return found;
}

/// Two ranks on two logical devices of one GPU; returns what each threw.
std::vector<std::string> share_a_gpu() {
  return try_nccl_ranks(
      2, [](ProcessGroup& group) { group.barrier().wait(); },
      [](int rank) {
        return nccl_options({DeviceKind::cuda, 0, rank});
      });
}

}  // namespace

TEST_CASE("simulated: NCCL uses duet's interface, loopback on one host, unless its own variable is set") {
  const auto interface = [] {
    const char* const value = std::getenv(kNcclInterface);
    return std::string(value == nullptr ? "" : value);
  };
  const std::vector<std::string> well = {"", ""};
  ::unsetenv(kNcclInterface);
  CHECK(meet_over_nccl() == well);
  CHECK(interface() == "=lo");
  ::unsetenv(kNcclInterface);
  ::setenv(ddp::kInterfaceVariable, "nope0", 1);
  for (const std::string& one : meet_over_nccl()) CHECK_THAT(one, ContainsSubstring("DUET_INTERFACE is nope0"));
  ::setenv(ddp::kInterfaceVariable, some_interface().c_str(), 1);
  CHECK(meet_over_nccl() == well);
  CHECK(interface() == "=" + some_interface());
  ::setenv(kNcclInterface, "=nope1", 1);  // by the user
  for (const std::string& one : meet_over_nccl()) CHECK_THAT(one, ContainsSubstring("no socket interface found"));
  CHECK(interface() == "=nope1");
  ::unsetenv(ddp::kInterfaceVariable);
  for (const char* name : {"=nope2", ""}) {  // before the first call of NCCL
    ::unsetenv(kNcclInterface);
    const auto failures = try_nccl_ranks(
        2, [](ProcessGroup& group) { group.barrier().wait(); },
        [&](int rank) {
          ddp::ConnectOptions options = nccl_options(gpu_of(rank));
          if (*name != '\0') options.interface = name + 1;
          return options;
        });
    for (const std::string& one : failures) CHECK(one.empty() == (*name == '\0'));
    CHECK(interface() == name);
  }
}

TEST_CASE("simulated: NCCL registers no buffers for graphs, unless its own variable says so") {
  constexpr const char* kRegister = "NCCL_GRAPH_REGISTER";
  for (const bool asked : {false, true}) {
    asked ? ::setenv(kRegister, "1", 1) : ::unsetenv(kRegister);
    run_nccl_ranks(2, [](ProcessGroup& group) { group.barrier().wait(); });
    CHECK(std::string(std::getenv(kRegister)) == (asked ? "1" : "0"));
  }
  ::unsetenv(kRegister);
}

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
        repeat_until_it_fails([&] {
          group.all_reduce(x).wait();
          group.barrier().wait();
        });
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
        repeat_until_it_fails([&] { group.barrier().wait(); });
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
        try {  // rank 1 may still join rank 0, which publishes its error before it aborts its communicator
          for (int i = 0; i < (group.rank() == 0 ? 1 : 1000); ++i) group.barrier().wait();
        } catch (...) {
          if (group.rank() == 0) failed.count_down();
          throw;
        }
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  duet_sim::reset(1);
  CHECK_THAT(failures.at(0), ContainsSubstring("barrier #2 failed on rank 0: NCCL: internal error"));
  CHECK_THAT(failures.at(1), ContainsSubstring("failed on rank 0: NCCL: internal error"));
}

TEST_CASE("simulated: an abort that takes long delays only the aborting rank") {
  std::promise<void> thrown;
  bool others_went_on = false;
  duet_sim::before_next("ncclCommAbort", [&, published = thrown.get_future().share()] {
    others_went_on = published.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  });
  std::latch idle(2), ended(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        idle.arrive_and_wait();  // from here on rank 1's watchdog polls no errors, and so finds none of rank 0's
        if (group.rank() == 1) return ended.arrive_and_wait();
        try {
          ddp::Work barrier = group.barrier();
          duet_sim::set_failures("ncclCommGetAsyncError:1:3");  // ncclInternalError
          barrier.wait();                                       // its thread waits, the watchdog aborts
        } catch (const CommError&) {
          thrown.set_value();
        }
        ended.arrive_and_wait();
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  duet_sim::reset(1);
  CHECK(others_went_on);
}

TEST_CASE("simulated: an abort that can start no thread still reports the cause, and ends") {
  std::atomic<bool> aborted{false};
  duet_sim::before_next("ncclCommAbort", [&] { aborted = true; });
  std::optional<FewThreads> few;
  std::latch recorded(2), limited(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        const Device gpu = gpu_of(group.rank());
        const Tensor x = zeros({1}, DType::f32, gpu);
        StepRecorder& recorder = *backend(gpu.kind).recorder(gpu);
        group.all_reduce(x).wait();
        recorder.begin(0);
        group.all_reduce(x).wait();  // its graph holds the communicator until that is closed
        recorder.replay(recorder.end(), 0);
        group.barrier().wait();
        recorded.arrive_and_wait();
        if (group.rank() == 0) {
          few.emplace(0);
          duet_sim::set_failures("ncclCommGetAsyncError:1:3");  // ncclInternalError
        }
        limited.arrive_and_wait();
        repeat_until_it_fails([&] { group.barrier().wait(); });
      },
      [](int rank) { return nccl_options(gpu_of(rank)); });
  few.reset();
  duet_sim::reset(1);
  CHECK(aborted);
  for (const std::string& failure : failures)
    CHECK_THAT(failure, ContainsSubstring("failed on rank ") && ContainsSubstring("NCCL: internal error"));
}

TEST_CASE("simulated: ranks that share a GPU are refused with what to do") {
  constexpr const char* kVersion = "DUET_SIM_NCCL_VERSION";
  constexpr const char* kShare = "NCCL_MULTI_RANK_GPU_ENABLE";
  ::setenv(kShare, "1", 1);
  for (const std::string& failure : share_a_gpu())
    CHECK(
        failure ==
        "ranks 0, 1 share one GPU, which NCCL 2.28.9 does not allow (2.30 and newer can): give every rank a GPU of its "
        "own, or use the backend gloo or shm");
  ::unsetenv(kShare);
  ::setenv(kVersion, "23000", 1);
  for (const std::string& failure : share_a_gpu())
    CHECK_THAT(failure, ContainsSubstring("allows only with the environment variable NCCL_MULTI_RANK_GPU_ENABLE=1"));
  ::setenv(kShare, "1", 1);
  for (const std::string& failure : share_a_gpu()) CHECK(failure == "");
  ::unsetenv(kShare);
  ::setenv(kVersion, "30000", 1);
  for (const std::string& failure : share_a_gpu())
    CHECK(failure == "NCCL 3.0.0 was found, but duet was built for NCCL 2");
  ::unsetenv(kVersion);
}

TEST_CASE("simulated: partitions of one GPU are one GPU to NCCL before 2.30, and several from then on") {
  ::setenv("DUET_SIM_PARTITIONS", "1", 1);
  const auto meet = [] {
    return try_nccl_ranks(
        2, [](ProcessGroup& group) { group.barrier().wait(); }, [](int rank) { return nccl_options(gpu_of(rank)); });
  };
  for (const std::string& failure : meet()) CHECK_THAT(failure, ContainsSubstring("ranks 0, 1 share one GPU"));
  ::setenv("DUET_SIM_NCCL_VERSION", "23000", 1);
  for (const std::string& failure : meet()) CHECK(failure == "");
  ::unsetenv("DUET_SIM_NCCL_VERSION");
  ::unsetenv("DUET_SIM_PARTITIONS");
}
