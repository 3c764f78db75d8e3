// Ranks in processes of their own, one of which is killed inside a collective.
#include <signal.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "ddp/launch/launch.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using duet_test::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

/// Kills rank 1 inside the operation; the others must fail by themselves, as the launcher cannot end them.
void kill_inside(const std::string& backend, const std::string& op, int ranks) {
  INFO("rank 1 of " << ranks << " dies in " << op << " over " << backend);
  std::map<int, std::string> said;
  LaunchOptions options{.ranks = ranks, .command = {DUET_DDP_WORKER, "die", backend, op}, .grace = 60s};
  options.on_line = [&](int rank, bool, std::string_view line) { said[rank] += line; };
  const auto begin = Clock::now();
  const LaunchResult result = launch(options);
  CHECK(Clock::now() - begin < 30s);  // before the grace; start and rendezvous included
  CHECK(result.failed_rank == 1);
  CHECK(result.signal == SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != 1) CHECK_THAT(said[rank], ContainsSubstring(op) && ContainsSubstring(concat("failed on rank ", rank)));
  }
}

}  // namespace

TEST_CASE("a rank killed inside a collective ends its peers, over shared memory") {
  int ranks = 2;
  for (const char* op : {"all_reduce", "reduce", "broadcast", "gather", "scatter", "all_gather", "reduce_scatter",
                         "all_to_all", "barrier"})
    kill_inside("shm", op, ranks = ranks % 3 + 2);
  kill_inside("shm", "recv", 2);
}

DUET_TEST_UNLESS(why_no_gloo(), "a rank killed inside a collective ends its peers, over Gloo") {
  int ranks = 2;
  for (const char* op : {"all_reduce", "broadcast", "reduce_scatter", "all_to_all", "barrier"})
    kill_inside("gloo", op, ranks = ranks % 3 + 2);
  kill_inside("gloo", "recv", 2);
}
