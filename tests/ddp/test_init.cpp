#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/init.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/store/file_store.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

std::string tcp_url(const ReservedPort& port) { return concat("tcp://127.0.0.1:", port.port()); }

/// The sum of 1..size over ranks that meet by `url`, and what went wrong.
std::vector<std::string> meet(const std::string& url, const std::vector<int>& ranks, int size,
                              Milliseconds timeout = 60s, const std::string& backend = "auto") {
  std::vector<std::string> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto group = init_process_group({.backend = backend,
                                               .init_method = url,
                                               .rank = ranks[i],
                                               .world_size = size,
                                               .join_timeout = timeout,
                                               .run_id = "test"});
        float sum = static_cast<float>(ranks[i] + 1);
        group->all_reduce({&sum, 1, DType::f32}).wait();
        outcomes[i] = concat(group->backend(), " ", sum);
      } catch (const std::exception& error) {
        outcomes[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void refused(const InitOptions& options, const std::string& text) {
  CHECK_THROWS_WITH(init_process_group(options), ContainsSubstring(text));
  CHECK_THROWS_AS(init_process_group(options), UsageError);
}

}  // namespace

TEST_CASE("ranks meet over tcp:// and file://") {
  const Scratch scratch;
  const bool tcp = GENERATE(true, false);
  const std::string backend = GENERATE("auto", "shm", "gloo");
  if (backend == "gloo" && !why_no_gloo().empty()) DUET_SKIP("Gloo is not built");
  const ReservedPort port("127.0.0.1", 0);
  const std::string url = tcp ? tcp_url(port) : "file://" + scratch.path("meet");
  const std::string expected = backend == "gloo" ? "gloo 6" : "shm 6";
  for (const std::string& outcome : meet(url, {0, 1, 2}, 3, 60s, backend)) CHECK(outcome == expected);
  CHECK_FALSE(std::filesystem::exists(scratch.path("meet")));
}

TEST_CASE("a thousand groups over one store leave nothing behind, also where ranks fail and die") {
  const std::string backend = GENERATE("shm", "tcp", "gloo");
  if (backend == "gloo" && !why_no_gloo().empty()) DUET_SKIP("Gloo is not built");
  const std::string groups = backend == "shm" ? "1000" : "200";  // the others share what a thousand could exhaust
  const Outcome outcome = run_worker(3, {"groups", backend, groups}, {.grace = 120s});
  CHECK(outcome.result.failed_rank == 2);
  CHECK(outcome.result.signal == SIGKILL);
  for (const int rank : {0, 1}) {
    INFO(backend << ", rank " << rank << ": " << outcome.errors());
    REQUIRE(outcome.out.count(rank) == 1);
    CHECK(outcome.out.at(rank).back() == "more descriptors 0, threads 0, segments 0");
  }
}

TEST_CASE("ranks that do not come are named") {
  const Scratch scratch;
  for (const int rank : {0, 2}) {  // the other of the two is there already
    const std::string path = scratch.path(concat("meet", rank));
    FileStore(path, "test").set(concat("duet/init/joined/", 2 - rank), "process 1 on elsewhere");
    CHECK_THAT(meet("file://" + path, {rank}, 4, 60ms)[0], ContainsSubstring("ranks 1, 3 of 4 did not join"));
  }
  const ReservedPort port("127.0.0.1", 0);
  CHECK_THAT(meet(tcp_url(port), {0}, 2, 60ms)[0], ContainsSubstring("rank 1 of 2 did not join within 60 ms"));
}

TEST_CASE("rank 0 remarks on who has joined from where") {
  const Outcome outcome = run_worker(2, {"rounds", "1"}, {.verbose = true});
  CHECK(outcome.result.message == "");
  CHECK(outcome.err.count(1) == 0);
  REQUIRE(outcome.err.count(0) == 1);
  const std::vector<std::string>& lines = outcome.err.at(0);
  REQUIRE(lines.size() == 2);
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    CHECK(lines[rank].starts_with(concat("rank ", rank, " joined: process ")));
    CHECK(lines[rank].ends_with(" at 127.0.0.1"));
  }
}

TEST_CASE("two processes with one rank, and other world sizes, are refused") {
  const Scratch scratch;
  FileStore store(scratch.path("meet"), "test");
  store.set("duet/init/joined/0", "process 1 on elsewhere");
  CHECK_THAT(meet("file://" + scratch.path("meet"), {0}, 2, 60ms)[0],
             ContainsSubstring("two processes claim to be rank 0: process 1 on elsewhere"));
  store.set("duet/init/world_size", "3");
  CHECK_THAT(meet("file://" + scratch.path("meet"), {1}, 2, 60ms)[0],
             ContainsSubstring("rank 1 counts 2 ranks, but another rank counts 3"));
}

TEST_CASE("a taken port is named") {
  const TcpStore taken({.port = 0, .serve = true});
  CHECK_THAT(meet(concat("tcp://127.0.0.1:", taken.port()), {0}, 2, 60ms)[0],
             ContainsSubstring(std::to_string(taken.port())) && ContainsSubstring("errno 98"));
}

TEST_CASE("bad rendezvous are refused with PyTorch's words") {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  refused({}, "environment variable RANK expected, but not set");
  refused({.rank = 0}, "environment variable WORLD_SIZE expected, but not set");
  refused({.rank = 0, .world_size = 2}, "environment variable MASTER_ADDR expected, but not set");
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  refused({.rank = 0, .world_size = 2}, "environment variable MASTER_PORT expected, but not set");
  ::setenv("MASTER_PORT", "many", 1);
  refused({.rank = 0, .world_size = 2}, "environment variable MASTER_PORT must be a number, got \"many\"");
  ::setenv("MASTER_PORT", "65536", 1);
  refused({.rank = 0, .world_size = 2}, "port must have value from 0 to 65535 but was 65536");
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  refused({.backend = "foo"}, "Invalid backend: 'foo'");
  refused({.init_method = "xyz://"}, "No rendezvous handler for xyz://");
  refused({.init_method = "nonsense"}, "is not env://");
  refused({.init_method = "tcp://localhost:1"}, "tcp:// rendezvous: rank parameter missing");
  refused({.init_method = "tcp://localhost:1", .rank = 0}, "tcp:// rendezvous: world size parameter missing");
  refused({.init_method = "tcp://localhost", .rank = 0, .world_size = 2}, "tcp:// rendezvous: port number missing");
  refused({.init_method = "file://", .rank = 0, .world_size = 2}, "file:// rendezvous: path missing");
  refused({.init_method = "file://foo?rank=12&world_size=16", .rank = 0},
          "The url: file://foo?rank=12&world_size=16 has node-specific arguments(rank, world_size) already.");
  refused({.init_method = "file://foo?rank=3&world_size=3"}, "Invalid rank 3, rank should be in the interval [0, 2]");
  refused({.init_method = "file://foo?colour=3"}, "unknown name colour");
}

TEST_CASE("a world of one needs nothing") {
  const auto group = init_process_group({.rank = 0, .world_size = 1});
  CHECK(std::string(group->backend()) == "solo");
  CHECK(group->size() == 1);
}

TEST_CASE("ranks that share a store meet in it, all of them or some") {
  const auto store = std::make_shared<MemoryStore>();
  const std::string backend = GENERATE("auto", "tcp");
  std::vector<std::string> outcomes(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto all = init_process_group(store, rank, 3, {.backend = backend});
      float sum = static_cast<float>(rank + 1);
      all->all_reduce({&sum, 1, DType::f32}).wait();
      std::string& outcome = outcomes[static_cast<std::size_t>(rank)] = concat(all->backend(), " ", sum);
      if (rank == 1) return;
      const auto some = init_process_group(std::make_shared<PrefixStore>(all->store(), "some/"), rank / 2, 2,
                                           {.backend = backend, .subgroup = "some"});
      some->all_reduce({&sum, 1, DType::f32}).wait();
      outcome += concat(" ", sum);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string name = backend == "auto" ? "shm" : "tcp";
  CHECK(outcomes == std::vector{name + " 6 12", name + " 6", name + " 6 12"});
  CHECK_THROWS_WITH(init_process_group(nullptr, 0, 2), ContainsSubstring("there is no store"));
  CHECK_THROWS_WITH(init_process_group(store, 2, 2), ContainsSubstring("Invalid rank 2"));
}
