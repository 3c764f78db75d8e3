// Hosts that run ahead of a collective.
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "tests/fake_cuda/ranks.h"

using namespace duet_test;

TEST_CASE("a full launch queue blocks the host until the device goes on, or the communicator is aborted") {
  duet_sim::reset(1);
  ::setenv("DUET_SIM_QUEUE", "4", 1);
  CHECK(ranks(2, [](Rank& r) {
          for (int i = 0; i < 10; ++i) ncclAllReduce(r.in, r.out, 4, ncclFloat32, ncclSum, r.comm, r.stream);
          return cudaStreamSynchronize(r.stream) == cudaSuccess;
        }) == 2);
  /// Calls that were enqueued until one failed, with a peer that never joins them.
  const auto run_ahead = [](bool aborted) {
    std::atomic<int> calls = 0;
    duet_sim::take_calls();
    ranks(2, [&](Rank& r) {
      if (r.rank == 1) return true;
      std::thread aborting([&, comm = r.comm] {
        for (long entered = 0; aborted && entered < 5;) entered += duet_sim::take_calls()["ncclAllReduce"];
        if (aborted) ncclCommAbort(comm);
      });
      while (ncclAllReduce(r.in, r.out, 4, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess) ++calls;
      if (!aborted) ncclCommAbort(r.comm);
      aborting.join();
      return true;
    });
    return calls.load();
  };
  CHECK(run_ahead(true) == 4);
  duet_sim::reset(1);
  ::setenv("DUET_SIM_TIMEOUT_S", "1", 1);
  CHECK(run_ahead(false) == 4);
  ::unsetenv("DUET_SIM_TIMEOUT_S");
  ::unsetenv("DUET_SIM_QUEUE");
  CHECK_THAT(duet_sim::take_report(),
             ContainsSubstring("deadlock: ncclAllReduce waits for work that is never enqueued"));
  duet_sim::reset(1);
}
