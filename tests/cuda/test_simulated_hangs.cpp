// Calls of NCCL and CUDA that do not return: the group ends all the same.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "lib/backend/step_graph.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

namespace {

using std::chrono::milliseconds;

/// Makes the next call of a function wait until release(), or for long if that never comes.
class Held {
 public:
  explicit Held(const std::string& function) {
    duet_sim::before_next(function, [this] {
      in_time_ = released_.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      returned_.set_value();
    });
  }
  void release() { released_.set_value(); }
  /// Waits until the call goes on; whether it was released.
  bool in_time() {
    returned_.get_future().wait();
    return in_time_;
  }

 private:
  std::promise<void> released_, returned_;
  bool in_time_ = false;
};

void wait_for_calls(const std::string& function, long calls) {
  for (long seen = 0; seen < calls; std::this_thread::yield()) seen += duet_sim::take_calls()[function];
}

/// Rank 0 calls `body` until it throws; rank 1 joins nothing.
std::vector<std::string> desert(const std::function<void(ProcessGroup&, const Tensor&)>& body) {
  std::latch ended(2);
  return try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        if (group.rank() == 1) return ended.arrive_and_wait();
        const Tensor x = one_on(0);
        try {
          repeat_until_it_fails([&] { body(group, x); });
        } catch (...) {
          ended.arrive_and_wait();
          throw;
        }
        ended.arrive_and_wait();
      },
      with_timeout(milliseconds(300), milliseconds(300)));
}

}  // namespace

TEST_CASE("simulated: an initialisation that does not return in time is left to its thread") {
  Held held("ncclCommInitRankConfig");
  std::latch here(2);
  const auto options = [&](int rank) {
    ddp::ConnectOptions impatient = nccl_options(gpu_of(rank));
    impatient.connect_timeout = milliseconds(5000);
    here.arrive_and_wait();
    return impatient;
  };
  for (const std::string& failure : try_nccl_ranks(
           2, [](ProcessGroup&) {}, options))
    CHECK_THAT(failure, ContainsSubstring("connecting #0 failed on rank ") &&
                            ContainsSubstring("it has not ended within 5000 ms") &&
                            ContainsSubstring("; NCCL cannot abort this, so the thread that connects is left running"));
  duet_sim::take_calls();
  held.release();
  CHECK(held.in_time());
  wait_for_calls("ncclCommAbort", 2);  // the communicators that are made too late
  duet_sim::reset(1);
}

TEST_CASE("simulated: a rank whose initialisation fails ends the others', also those that hang") {
  Held held("ncclCommInitRankConfig");
  duet_sim::set_failures("ncclCommInitRankConfig:1");  // of the rank that is not held
  const auto failures = try_nccl_ranks(
      2, [](ProcessGroup&) {}, [](int rank) { return nccl_options(gpu_of(rank)); });
  int left = 0;
  for (const std::string& failure : failures) {
    CHECK_THAT(failure,
               ContainsSubstring("connecting #0 failed on rank ") && ContainsSubstring("NCCL: unhandled system error"));
    left += failure.find("the thread that connects is left running") != std::string::npos ? 1 : 0;
  }
  CHECK(left == 1);
  duet_sim::reset(1);
  ::setenv("DUET_SIM_TIMEOUT_S", "1", 1);  // of its simulated peers
  duet_sim::take_calls();
  held.release();
  CHECK(held.in_time());
  wait_for_calls("ncclCommAbort", 1);
  ::unsetenv("DUET_SIM_TIMEOUT_S");
  duet_sim::reset(1);
}

TEST_CASE("simulated: a group leaves NCCL that does not end in time") {
  Held held("ncclCommFinalize");
  const auto failures = try_nccl_ranks(
      2, [](ProcessGroup& group) { group.barrier().wait(); },
      [](int rank) {
        ddp::ConnectOptions options = nccl_options(gpu_of(rank));
        options.group.leave_timeout = milliseconds(200);
        return options;
      });
  held.release();
  CHECK(held.in_time());
  for (const std::string& failure : failures) CHECK(failure == "");
}

TEST_CASE("simulated: a communicator that does not block, by NCCL's own variable, is refused") {
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  const auto failures = try_nccl_ranks(
      2, [](ProcessGroup&) {}, [](int rank) { return nccl_options(gpu_of(rank)); });
  ::unsetenv("NCCL_COMM_BLOCKING");
  for (const std::string& failure : failures)
    CHECK_THAT(failure, ContainsSubstring("NCCL_COMM_BLOCKING, which overrules that, must not be 0"));
}

TEST_CASE("simulated: a host that runs ahead of a hanging collective, until the launch queue is full, is released") {
  const bool waits = GENERATE(false, true);
  // All places at which the host can wait for room: 4 operations of NCCL's stream for each call, 6 of the other.
  for (int length = 6; length < 12; ++length) {
    CAPTURE(waits, length);
    ::setenv("DUET_SIM_QUEUE", std::to_string(length).c_str(), 1);
    const auto failures = desert([&](ProcessGroup& group, const Tensor& x) {
      ddp::Work work = group.all_reduce(x);
      if (!waits) return;
      work.wait();
      for (int i = 0; i < 4; ++i) backend(x).scale(x, 2);
    });
    CHECK_THAT(failures[0],
               ContainsSubstring("all_reduce #1 failed on rank 0: it has not ended within 300 ms; rank 1 did not"));
    CHECK(failures[1] == "");
  }
  ::unsetenv("DUET_SIM_QUEUE");
}

TEST_CASE("simulated: a call that NCCL does not return from is released by an abort, also while a step is recorded") {
  const bool recorded = GENERATE(false, true);
  Held held("ncclAllReduce");
  duet_sim::before_next("ncclCommAbort", [&] { held.release(); });
  const auto failures = desert([&](ProcessGroup& group, const Tensor& x) {
    StepRecorder& recorder = *backend(x).recorder(x.device());
    if (recorded) recorder.begin(0);
    try {
      group.all_reduce(x).wait();
    } catch (...) {
      recorder.cancel();
      throw;
    }
  });
  CHECK(held.in_time());
  CHECK_THAT(failures[0], ContainsSubstring(recorded ? "recording all_reduce failed" : "all_reduce #1 failed") &&
                              ContainsSubstring(" on rank 0: it has not ended within 300 ms"));
  CHECK(failures[1] == "");
}

TEST_CASE("simulated: a failure reaches the other ranks while its own rank still aborts") {
  std::latch connected(2);
  Held held("ncclCommAbort");
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        connected.arrive_and_wait();
        if (group.rank() == 0) throw DataError("a damaged file");  // drops the group
        try {
          group.barrier().wait();
        } catch (...) {
          held.release();
          throw;
        }
      },
      with_timeout(std::chrono::seconds(60), std::chrono::seconds(60)));
  CHECK(held.in_time());
  CHECK(failures[0] == "a damaged file");
  CHECK_THAT(failures[1], ContainsSubstring("the group failed on rank 0: it was dropped"));
}
