// The order of NCCL's sums, and hosts that run ahead of a collective.
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "tests/fake_cuda/ranks.h"

using namespace duet_test;

namespace {

/// 1e8 + 1 - 1e8 + 1 over four ranks in the order that NCCL chooses, plain or in a graph: 0 or 2.
float ordered_sum(Rank& r, std::size_t count, bool graph) {
  const float own[] = {1e8f, 1, -1e8f, 1}, one = own[r.rank], values[] = {one, one, one, one};
  cudaMemcpyAsync(r.in, values, sizeof values, cudaMemcpyHostToDevice, r.stream);
  const cudaGraphExec_t recorded = graph ? captured(r, count) : nullptr;
  if (graph)
    cudaGraphLaunch(recorded, r.stream);
  else
    ncclAllReduce(r.in, r.out, count, ncclFloat32, ncclSum, r.comm, r.stream);
  const float sum = r.get(1)[0];
  if (graph) cudaGraphExecDestroy(recorded);
  return sum;
}

/// Whether sums of two kinds are ever other ones, in 16 sizes and communicators.
bool orders_differ(std::size_t more, bool graph) {
  std::atomic<bool> differ = false;
  for (int communicator = 0; communicator < 16; ++communicator) {
    CHECK(ranks(4, [&](Rank& r) {
            for (std::size_t count = 1; count <= 2; ++count)
              if (ordered_sum(r, count, false) != ordered_sum(r, count + more, graph)) differ = true;
            return true;
          }) == 4);
  }
  return differ;
}

}  // namespace

TEST_CASE("sums are ordered by communicator and size, and otherwise in graphs where buffers are registered") {
  duet_sim::reset(1);
  CHECK_FALSE(orders_differ(0, false));
  CHECK(orders_differ(1, false));
  CHECK(orders_differ(0, true));
  ::setenv("NCCL_GRAPH_REGISTER", "0", 1);
  CHECK_FALSE(orders_differ(0, true));
  ::unsetenv("NCCL_GRAPH_REGISTER");
  duet_sim::reset(1);
}

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
