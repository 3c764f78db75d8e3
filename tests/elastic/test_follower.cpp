// The memory of a host whose launcher follows the arbiter of an elastic job on several hosts, and what these send.
#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ddp/launch/job_hosts.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/launcher_link.h"
#include "ddp/launch/losses.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using Loss = JobLosses::Loss;

namespace {

std::int64_t after_step(std::int64_t step) { return step * Recovery::kCommitsPerStep; }

/// Ranks 0 and 1 are on the arbiter's host, 2 and 3 on the other one.
struct TwoHosts {
  explicit TwoHosts(int least = 4) : arbiter({4, least, 0}, 3, false), other({4, 4, 0}, 3, false) {
    exchange();
    for (JobMember* const member : {&zero, &one, &two, &*three}) member->commit(after_step(5));
    exchange();
  }

  /// What the launchers send to each other.
  void exchange() {
    for (const int rank : own) arbiter.arbiter().take(follower.line(rank, 0));
    follower.take(arbiter.arbiter().decisions(), own);
  }

  JobLosses arbiter, other;
  JobFollower follower = JobFollower(other.job());
  std::vector<int> own = {2, 3};
  JobMember zero = JobMember(arbiter.job(), 0), one = JobMember(arbiter.job(), 1), two = JobMember(other.job(), 2);
  std::optional<JobMember> three = JobMember(other.job(), 3);
};

/// A store whose calls throw what is no Error.
struct FullStore final : Store {
  FullStore() : Store(Milliseconds(1000)) {}
  std::vector<std::string> request(StoreOp, std::vector<std::string>, Milliseconds) override { throw std::bad_alloc(); }
};

/// Waits until it rings.
void await(const Bell& bell) {
  pollfd event{bell.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&event, 1, 60'000) == 1);
}

/// A process of rank 3 on its host that replaces a lost one.
void replace_rank_3(TwoHosts& hosts) {
  CHECK(hosts.arbiter.lose(3) == Loss::replaced);
  hosts.follower.begin(3, false);
  hosts.exchange();
  hosts.three.emplace(hosts.other.job(), 3);
}

}  // namespace

TEST_CASE("the arbiter's memory has what processes of other hosts have completed") {
  TwoHosts hosts;
  CHECK(hosts.arbiter.job().steps(3) == 5);
  CHECK(hosts.arbiter.job().has_joined(2));
  hosts.two.commit(after_step(6));
  CHECK(hosts.arbiter.job().steps(2) == 5);
  hosts.exchange();
  CHECK(hosts.arbiter.job().steps(2) == 6);
  CHECK(hosts.other.job().steps(0) == 5);
}

TEST_CASE("ranks of two hosts go on by the plan of the arbiter's") {
  TwoHosts hosts;
  hosts.two.commit(after_step(6));
  replace_rank_3(hosts);
  CHECK(hosts.two.is_behind(0));
  for (JobMember* const member : {&hosts.zero, &hosts.one, &hosts.two, &*hosts.three}) CHECK(member->arrive() == 1);
  CHECK(hosts.two.members() == std::vector<int>{0, 1, 2, 3});
  CHECK(hosts.arbiter.arbiter().missing() == std::vector<int>{2, 3});
  std::optional<RecoveryPlan> there;
  std::thread waits([&] { there = hosts.two.await_plan(1); });
  hosts.exchange();
  waits.join();
  REQUIRE(there);
  const std::optional<RecoveryPlan> here = hosts.zero.await_plan(1);
  REQUIRE(here);
  CHECK(there->commits == after_step(6));
  CHECK(there->source == 2);
  CHECK(here->commits == there->commits);
  CHECK(here->source == there->source);
  CHECK(hosts.arbiter.recovers());
  hosts.three->commit(after_step(6));
  hosts.exchange();
  CHECK_FALSE(hosts.arbiter.recovers());
}

TEST_CASE("a host is left out rank by rank, whatever generations the other one has not seen") {
  TwoHosts hosts(1);
  CHECK(hosts.arbiter.lose(0) == Loss::left_out);
  CHECK(hosts.arbiter.lose(1) == Loss::left_out);
  hosts.exchange();
  CHECK(hosts.other.job().least_ranks() == 1);
  CHECK(hosts.two.arrive() == 2);
  CHECK(hosts.two.members() == std::vector<int>{2, 3});
  CHECK(hosts.three->arrive() == 2);
  std::thread waits([&] { CHECK(hosts.three->await_plan(2)); });
  hosts.exchange();
  waits.join();
  std::array<std::thread, 2> ends = {std::thread([&] { CHECK(hosts.two.finish(2)); }),
                                     std::thread([&] { CHECK(hosts.three->finish(2)); })};
  while (!hosts.other.job().ended()) hosts.exchange();  // no rank is left on the arbiter's host
  for (std::thread& end : ends) end.join();
}

TEST_CASE("a job on two hosts ends where the arbiter says so, when all ranks have ended their training") {
  TwoHosts hosts;
  std::vector<int> ended(4);
  std::vector<std::thread> ranks;
  for (JobMember* const member : {&hosts.zero, &hosts.one, &hosts.two, &*hosts.three})
    ranks.emplace_back([member, &ended] { ended[static_cast<std::size_t>(member->rank())] = member->finish(0); });
  while (!hosts.arbiter.job().ended() || !hosts.other.job().ended()) {
    hosts.exchange();
    std::this_thread::yield();
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(ended == std::vector<int>{1, 1, 1, 1});
}

TEST_CASE("all ranks of two hosts begin again") {
  TwoHosts hosts;
  CHECK(hosts.arbiter.lose(1) == Loss::replaced);
  hosts.exchange();
  hosts.arbiter.begin();
  hosts.follower.clear();
  for (const int rank : hosts.own) hosts.follower.begin(rank, true);
  hosts.exchange();
  for (JobLosses* const host : {&hosts.arbiter, &hosts.other}) {
    CHECK_FALSE(host->job().has_joined(2));
    CHECK(host->job().committed(2) == 0);
    CHECK(host->job().is_member(1));
    CHECK(JobMember(host->job(), 2).generation() == 0);
  }
}

TEST_CASE("a follower takes no decisions that an arbiter does not take") {
  TwoHosts hosts;
  std::vector<std::byte> decisions = hosts.arbiter.arbiter().decisions();
  CHECK(hosts.arbiter.lose(1) == Loss::replaced);
  hosts.exchange();
  CHECK_THROWS_AS(hosts.follower.take(decisions, hosts.own), CommError);  // of an older generation
  decisions = hosts.arbiter.arbiter().decisions();
  decisions.push_back(std::byte{0});
  CHECK_THROWS_AS(hosts.follower.take(decisions, hosts.own), CommError);
  decisions.resize(decisions.size() / 2);
  CHECK_THROWS_AS(hosts.follower.take(decisions, hosts.own), CommError);
  JobLosses three({3, 3, 0}, 3, false);
  CHECK_THROWS_AS(JobFollower(three.job()).take(hosts.arbiter.arbiter().decisions(), hosts.own), CommError);
  JobLine line = hosts.follower.line(2, 0);
  line.committed = -2;
  CHECK_THROWS_AS(hosts.arbiter.arbiter().take(line), CommError);
}

TEST_CASE("the arbiter deletes the keys of generations in which no rank is any more") {
  const ReservedPort port("127.0.0.1", 0);
  JobLosses losses({2, 2, 0}, 9, false);
  const LaunchOptions options{.nodes = 2};
  const auto hosts =
      make_job_arbiter(options, {port.port(), "run", std::string(32, 'a')}, losses.job(), losses.arbiter(), nullptr);
  TcpStore store({.port = port.port(), .run = "run", .secret = std::string(32, 'a')});
  JobMember zero(losses.job(), 0), one(losses.job(), 1);
  zero.commit(after_step(5));
  const std::int64_t before = store.num_keys();
  for (std::uint32_t generation = 0; generation < 5; ++generation) {
    store.set(hosts->store() + generation_prefix(generation) + "key", "");
    CHECK(losses.lose(1) == Loss::replaced);
    for (JobMember* const member : {&zero, &one}) member->arrive();
    CHECK(zero.await_plan(generation + 1)->commits == after_step(5));
    hosts->exchange(false);
    CHECK(store.num_keys() == before);
    zero.commit(after_step(5));
  }
}

TEST_CASE("a launcher takes each item once, whichever texts do not arrive") {
  std::minstd_rand random(7);
  Backlog<Order::Start> told;
  std::int64_t taken = 0;
  int got = 0;
  for (int next = 0; got < 200; ++next) {
    if (next < 200) told.items.push_back({.rank = next});
    const std::string text = written(told);
    if (random() % 3 == 0)
      for (const Order::Start& start : read<Backlog<Order::Start>>(text).take(taken)) CHECK(start.rank == got++);
    if (random() % 3 == 0) told.forget(taken);
  }
}

TEST_CASE("a launcher's newest text takes the place of one that was not taken, and what ends its threads is kept") {
  TwoHosts hosts;
  const Bell hears, lacks, tells;
  const auto store = std::make_shared<MemoryStore>();
  {
    Outbox outbox(store, "box", tells, hosts.other.job());
    for (const char* const text : {"old", "newer", "newest"}) outbox.send(text);
  }
  Inbox inbox(store, "box", hears), lost(std::make_shared<FullStore>(), "box", lacks);
  Outbox unsent(std::make_shared<FullStore>(), "box", tells, hosts.other.job());
  unsent.send("text");
  for (const Bell* const bell : {&hears, &lacks, &tells}) await(*bell);
  CHECK(inbox.take() == std::vector<std::string>{"newest"});
  for (Letterbox* const box : std::array<Letterbox*, 2>{&lost, &unsent}) CHECK(box->lost() == std::bad_alloc().what());
}
