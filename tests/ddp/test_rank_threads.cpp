#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <set>
#include <string>

#include "ddp/rank_threads.h"
#include "ddp/store/network.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/few_threads.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

TEST_CASE("ranks may be threads of one process, over every backend") {
  for (const std::string backend : {"auto", "shm", "memory", "gloo"}) {
    if (backend == "gloo" && !why_no_gloo().empty()) continue;
    for (const int ranks : {1, 3}) {
      std::atomic<int> sums{0}, as_asked{0};
      run_rank_threads(
          ranks,
          [&](ProcessGroup& group) {
            std::int32_t value = group.rank() + 1;
            group.all_reduce({&value, 1, DType::i32}).wait();
            sums += value;
            as_asked += group.backend() == (ranks == 1 ? std::string("solo") : backend == "auto" ? "shm" : backend);
          },
          {.backend = backend});
      CHECK(sums == ranks * ranks * (ranks + 1) / 2);
      CHECK(as_asked == ranks);
    }
  }
  CHECK_THROWS_AS(run_rank_threads(2, [](ProcessGroup&) {}, {.backend = "mpi"}), UsageError);
  CHECK_THROWS_WITH(run_rank_threads(2, [](ProcessGroup&) {}, {.backend = "nccl"}),
                    "backend nccl: 2 ranks, but 0 devices");
}

TEST_CASE("of ranks that are threads, the one that failed by itself is named, and no other waits for it") {
  for (const std::string backend : {"shm", "memory"}) {
    std::atomic<int> lost{0};
    const auto job = [&](ProcessGroup& group) {
      if (group.rank() == 1) throw DataError("the disk is full");
      try {
        group.barrier().wait();
      } catch (const CommError&) {
        ++lost;
        throw;
      }
    };
    CHECK_THROWS_AS(run_rank_threads(3, job, {.backend = backend}), DataError);
    CHECK_THROWS_WITH(run_rank_threads(3, job, {.backend = backend}), "rank 1: the disk is full");
    CHECK(lost == 4);
  }
}

TEST_CASE("a rank that fails ends the ranks that wait for it in the store") {
  const auto job = [](ProcessGroup& group) {
    if (group.rank() == 1) throw DataError("the disk is full");
    group.shared_storage(1);  // all ranks rendezvous in the store
  };
  const RankThreadsOptions options{.backend = "shm", .group = {.timeout = std::chrono::hours(10)}};
  CHECK_THROWS_WITH(run_rank_threads(3, job, options), "rank 1: the disk is full");
}

DUET_TEST_UNLESS(why_no_gloo(), "the kernel ends connections of Gloo whose other host is silent for the timeout") {
  const std::set<int> others = tcp_connections();
  std::atomic<int> connections{0}, limited{0};
  const auto count = [&](ProcessGroup& group) {
    group.barrier().wait();
    if (group.rank() == 0) {
      for (const int connection : tcp_connections()) {
        if (others.contains(connection)) continue;
        int limit = 0, beats = 0;
        socklen_t size = sizeof(limit);
        ::getsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size);
        ::getsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &beats, &size);
        ++connections;
        limited += limit == 7000 && beats != 0;
      }
    }
    group.barrier().wait();
  };
  run_rank_threads(2, count, {.backend = "gloo", .group = {.timeout = Milliseconds(7000)}});
  CHECK(connections == 2);
  CHECK(limited == 2);
}

TEST_CASE("a rank whose group can start no thread ends the others, and the limit is named") {
  // Three threads are the ranks themselves. Of one group, some have their own thread and some have none.
  for (const std::string backend : {"shm", "memory", "gloo"}) {
    if (backend == "gloo" && !why_no_gloo().empty()) continue;
    const auto job = [](ProcessGroup& group) { group.barrier().wait(); };
    std::string what;
    {
      const FewThreads few(4);
      what = error_of<std::exception>([&] { run_rank_threads(3, job, {.backend = backend}); });
    }
    CHECK_THAT(what, ContainsSubstring(": cannot start the ") && ContainsSubstring("errno 11") &&
                         ContainsSubstring("the address space is limited to "));
  }
  const FewThreads few(1);
  CHECK_THROWS_WITH(run_rank_threads(3, [](ProcessGroup&) {}, {.backend = "shm"}),
                    ContainsSubstring("cannot start the thread of rank 1 of 3"));
}
