// Networks that are slow, that drop connections, and that swallow what is sent: a proxy stands between real processes.
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/tcp_store.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/transport/proxy.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

constexpr Milliseconds kGrace{60'000};  // after which a rank that hangs is killed, without an error

/// Processes with this argument.
int processes_with(const std::string& argument) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    count += line.find(argument) != std::string::npos;
  }
  return count;
}

/// As run_worker(); no process of it is left.
Outcome run_marked(int ranks, std::vector<std::string> arguments, LaunchOptions options = {}) {
  static int runs = 0;
  const std::string mark = concat("bad-network-", ::getpid(), "-", ++runs);
  arguments.push_back(mark);
  Outcome outcome = run_worker(ranks, std::move(arguments), std::move(options));
  CHECK(processes_with(mark) == 0);
  return outcome;
}

/// Three ranks, of which two reach the store of the first through a proxy.
struct ThroughProxy {
  explicit ThroughProxy(const Trouble& trouble, Milliseconds join_timeout)
      : proxy("127.0.0.1", store_port.port(), trouble) {
    outcome = run_marked(3, {"through", "20", std::to_string(store_port.port()), std::to_string(proxy.port())},
                         {.join_timeout = join_timeout, .grace = kGrace});
  }
  ReservedPort store_port{"127.0.0.1", 0};
  Proxy proxy;
  Outcome outcome;
};

/// How long ranks whose data goes through proxies wait for a message, and to be connected.
struct Patience {
  Milliseconds timeout = 60s, connect = 60s;
};

/// Ranks whose data goes through proxies.
Outcome run_proxied(int ranks, const std::string& task, const Trouble& trouble, const Patience& patience = {}) {
  const auto number = [](std::size_t bytes) {
    return bytes == Trouble::kNever ? std::string("-1") : std::to_string(bytes);
  };
  return run_marked(ranks,
                    {"proxied", task, std::to_string(trouble.delay.count()), number(trouble.reset_after),
                     number(trouble.swallow_after), trouble.only_answers ? "1" : "0",
                     std::to_string(patience.timeout.count()), std::to_string(patience.connect.count())},
                    {.grace = kGrace});
}

/// All ranks, which ignore SIGTERM, have ended with an error of their own, and these name rank 0's store or report
/// a missing rank.
void check_lost_store(const Trouble& trouble, Milliseconds join_timeout) {
  ThroughProxy run(trouble, join_timeout);
  CHECK(run.outcome.result.exit_code == 1);
  CHECK(run.outcome.took < kGrace);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(run.outcome.err[rank].size() == 1);
    const std::string& said = run.outcome.err[rank][0];
    INFO(said);
    CHECK(run.outcome.out[rank].empty());
    if (rank > 0)
      CHECK_THAT(said, (ContainsSubstring("lost the store of rank 0") || ContainsSubstring("no store answered")) &&
                           ContainsSubstring(concat(" at 127.0.0.1 port ", run.proxy.port())));
    else
      CHECK_THAT(said, ContainsSubstring("rank 1") || ContainsSubstring("ranks 1, 2") || ContainsSubstring("rank 2") ||
                           ContainsSubstring(concat("waited ", join_timeout.count(), " ms for the store's key")));
  }
}

/// As check_lost_store(): the errors name a peer.
void check_lost_peers(Outcome&& run) {
  CHECK(run.result.exit_code == 1);
  CHECK(run.took < kGrace);
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank, run.err[rank]);
    REQUIRE(run.err[rank].size() == 1);
    CHECK_THAT(run.err[rank][0], ContainsSubstring(concat(" failed on rank ", rank, ": rank ")));
  }
}

}  // namespace

TEST_CASE("a slow way to the store changes nothing") {
  const ThroughProxy slow({.delay = 5ms}, 60s);
  CHECK(slow.outcome.result.message == "");
  CHECK(slow.outcome.out == run_worker(3, {"rounds", "20"}).out);
  CHECK(slow.proxy.bytes() > 0);
}

TEST_CASE("a reset of the way to the store ends all ranks at once, and is named") {
  for (const std::size_t bytes : {4u, 100u}) check_lost_store({.reset_after = bytes}, 1s);  // in the handshake
  // Among the first steps, for which all ranks must have come.
  check_lost_store({.reset_after = 2000}, 4s);
}

TEST_CASE("a store from which nothing comes any more is given up within the given timeout, and is named") {
  check_lost_store({.swallow_after = 2000}, 4s);
  check_lost_store({.swallow_after = 2000, .only_answers = true}, 4s);
}

DUET_TEST_UNLESS(why_no_gloo(), "slow connections between ranks change no bit") {
  const Outcome slow = run_proxied(2, "train", {.delay = 2ms});
  CHECK(slow.result.message == "");
  const Outcome plain = run_worker(2, {"train", "64"});
  for (const auto& [rank, lines] : plain.out) {
    REQUIRE(slow.out.count(rank) == 1);
    CHECK(slow.out.at(rank).at(0) == lines.at(0));
  }
  CHECK(slow.out.at(0).at(1) == "proxied");  // the others connect with it
}

DUET_TEST_UNLESS(why_no_gloo(), "a reset between ranks ends all of them at once, and each names a peer") {
  for (const std::size_t bytes : {5000u, 300'000u, 1'000'000u}) {
    INFO("after " << bytes << " bytes");
    const auto begin = Clock::now();
    check_lost_peers(run_proxied(3, "endless", {.reset_after = bytes}));
    CHECK(Clock::now() - begin < 30s);  // before any timeout
  }
}

DUET_TEST_UNLESS(why_no_gloo(), "a reset while ranks connect ends all of them") {
  // They wait 2 s for a rank that has already failed.
  Outcome run = run_proxied(3, "endless", {.reset_after = 100}, {.timeout = 2s, .connect = 2s});
  CHECK(run.result.exit_code == 1);
  CHECK(run.took < kGrace);
  // At one moment Gloo's own thread ends its process, with a text of its own.
  for (int rank = 0; rank < 3; ++rank) CHECK(!run.err[rank].empty());
}

DUET_TEST_UNLESS(why_no_gloo(),
                 "a peer from which nothing comes any more is given up within the given timeout, and is named") {
  for (const bool only_answers : {false, true}) {
    Outcome run =
        run_proxied(3, "endless", {.swallow_after = 300'000, .only_answers = only_answers}, {.timeout = 1500ms});
    CHECK(run.took > 1500ms);
    CHECK_THAT(run.errors(), ContainsSubstring("Timed out waiting "));
    check_lost_peers(std::move(run));
  }
}
