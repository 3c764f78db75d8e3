// Ranks on several hosts: sums made host by host, and two network namespaces that stand for two hosts.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/random.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

std::atomic<std::int64_t> network_bytes{0};

/// Messages within the process that stand for those between hosts.
class CountedTransport final : public Transport {
 public:
  explicit CountedTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const char* name() const override { return "counted"; }
  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    const Request request = inner_->send(peer, tag, data, bytes);
    network_bytes += static_cast<std::int64_t>(bytes);
    return request;
  }
  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return inner_->receive(peer, tag, data, bytes);
  }
  void wait(Request request, Clock::time_point deadline) override { inner_->wait(request, deadline); }
  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    return std::make_unique<CountedTransport>(inner_->connect_subset(subset));
  }
  void close() override { inner_->close(); }

 private:
  std::unique_ptr<Transport> inner_;
};

using OptionsOf = std::function<GroupOptions(int rank)>;

/// What the ranks threw; no hosts: all messages go over the network.
std::vector<std::exception_ptr> try_hosts(
    const std::vector<int>& hosts, bool multi_host, const std::function<void(ProcessGroup&)>& body,
    const OptionsOf& options_of = [](int) { return GroupOptions{}; }) {
  const auto size = static_cast<int>(hosts.size());
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::exception_ptr> failures(hosts.size());
  std::latch connected(size);  // or failed to
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    threads.emplace_back([&, i] {
      std::unique_ptr<Transport> transport;
      try {
        transport = std::make_unique<CountedTransport>(make_memory_transport(*store, static_cast<int>(i), size, 60s));
        if (multi_host) transport = make_multi_host_transport(std::move(transport), store, hosts, 60s);
      } catch (...) {
        failures[i] = std::current_exception();
      }
      connected.arrive_and_wait();
      if (failures[i]) return;
      try {
        const auto group = make_group(std::move(transport), options_of(static_cast<int>(i)));
        group->set_store(store);
        body(*group);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// The bits of every rank's results of many calls.
std::vector<std::vector<float>> results(const std::vector<int>& hosts, bool multi_host) {
  std::vector<std::vector<float>> all(hosts.size());
  const auto failures = try_hosts(hosts, multi_host, [&](ProcessGroup& group) {
    auto& own = all[static_cast<std::size_t>(group.rank())];
    Mt19937 generator(static_cast<std::uint64_t>(group.rank()) + 1);
    for (const std::size_t count : {std::size_t{7}, std::size_t{9000}, std::size_t{100'003}, std::size_t{300'000}})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
        std::vector<float> values(count);
        generator.uniform(std::span<float>(values), -1.0, 1.0);
        group.all_reduce(std::span<float>(values), op).wait();
        own.insert(own.end(), values.begin(), values.end());
      }
    std::vector<float> drawn(70'001);
    generator.uniform(std::span<float>(drawn), -1.0, 1.0);
    std::vector<BFloat16> halves(drawn.begin(), drawn.end());
    group.all_reduce(std::span<BFloat16>(halves)).wait();
    own.insert(own.end(), halves.begin(), halves.end());
    std::vector<float> one(20'000, static_cast<float>(group.rank())), many(one.size() * hosts.size());
    group.all_gather(std::span<float>(one), std::span<float>(many)).wait();
    own.insert(own.end(), many.begin(), many.end());
    // A message that is on its way in parallel with a collective, both ways round.
    const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
    Work sum = group.all_reduce(std::span<float>(one));
    std::vector<float> sent(50'000, static_cast<float>(group.rank())), got(sent.size());
    Work sending = group.send(std::span<float>(sent), next);
    group.recv(std::span<float>(got), before).wait();
    sending.wait();
    sum.wait();
    own.insert(own.end(), got.begin(), got.end());
    own.insert(own.end(), one.begin(), one.end());
    const auto half = group.split(group.rank() % 2);
    half->all_reduce(std::span<float>(one)).wait();
    own.insert(own.end(), one.begin(), one.end());
  });
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return all;
}

}  // namespace

TEST_CASE("groups of several hosts give the bits of one network, and move less between hosts") {
  using Hosts = std::vector<int>;
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 0, 4, 4, 4, 4}, Hosts{0, 0, 2, 2, 4, 4, 6, 6},
                             Hosts{0, 1, 0, 1}, Hosts{0, 0, 2}, Hosts{0, 1}, Hosts{0, 0, 0, 3}}) {
    network_bytes = 0;
    const auto flat = results(hosts, false);
    const std::int64_t flat_bytes = network_bytes.exchange(0);
    INFO("ranks " << hosts.size());
    CHECK(results(hosts, true) == flat);
    if (hosts.size() > 2) CHECK(network_bytes < flat_bytes);
  }
}

TEST_CASE("messages arrive while a group's own thread runs a collective") {
  const auto body = [](ProcessGroup& group) {
    std::vector<float> large(1 << 20, 1.0f), small(1, 1.0f);
    Work sending;
    if (group.rank() == 0) sending = group.send(std::span<float>(large), 2);
    if (group.rank() == 2) {
      group.recv(std::span<float>(large), 0).wait();
      group.send(std::span<float>(small), 1).wait();
    }
    if (group.rank() == 1) group.recv(std::span<float>(small), 2).wait();  // comes to the sum once the message has
    Work sum = group.all_reduce(std::span<float>(small));
    try {
      if (group.rank() == 0) sum.wait(100ms);  // hands it to the group's thread
    } catch (const CommError&) {
    }
    sum.wait();
    sending.wait();
    CHECK(small[0] == 3);
  };
  const GroupOptions options{.timeout = 20s, .leave_timeout = 1s};
  auto failures = try_ranks(Over::shm, 3, options, body);
  for (auto& one : try_hosts({0, 1, 0}, true, body, [&](int) { return options; })) failures.push_back(std::move(one));
  for (const auto& one : failures) CHECK(text_of(one) == "");
}

TEST_CASE("sums are made host by host") {
  const auto bytes_of = [](const std::vector<int>& hosts) {
    network_bytes = 0;
    try_hosts(hosts, true, [](ProcessGroup& group) {
      std::vector<float> values(160'000, 1.0f);
      group.all_reduce(std::span<float>(values)).wait();
    });
    return network_bytes.load();
  };
  // Each of two hosts sends half of the buffer twice; headers besides.
  CHECK(bytes_of({0, 0, 1, 1}) < 160'000 * 4 * 2 + 12'000);
  CHECK(bytes_of({0, 0, 0, 0, 1, 1, 1, 1}) < 160'000 * 4 * 2 + 12'000);
}

TEST_CASE("failures on several hosts name the ranks by their numbers in the job") {
  // Rank 2 calls after it has received from ranks 0 and 1, which have more time, so that it waits for rank 3 only.
  const auto options_of = [](int rank) {
    return GroupOptions{.timeout = rank == 2 ? 200ms : 60'000ms, .leave_timeout = 10ms};
  };
  std::latch over(1);
  network_bytes = 0;
  const auto late = try_hosts(
      {0, 0, 2, 2}, true,
      [&](ProcessGroup& group) {
        if (group.rank() == 3) return over.wait();                                     // there, but without a call
        constexpr auto kReceived = static_cast<std::int64_t>(4 * sizeof(CallHeader));  // of two ranks by two others
        while (group.rank() == 2 && network_bytes < kReceived) std::this_thread::sleep_for(1ms);
        try {
          group.barrier().wait();
        } catch (...) {
          if (group.rank() == 2) over.count_down();
          throw;
        }
      },
      options_of);
  CHECK_THAT(text_of(late[2]), ContainsSubstring("rank 3 did not come in time"));
  const auto gone = try_hosts({0, 0, 2, 2}, true, [](ProcessGroup& group) {
    group.barrier().wait();
    if (group.rank() == 3) throw DataError("gone");
    group.barrier().wait();
  });
  std::string all;  // a rank may first lose another that has lost it
  for (const auto& failure : gone) all += text_of(failure);
  CHECK_THAT(all, ContainsSubstring("rank 3 has closed the connection"));
  const auto differ = try_hosts({0, 0, 2, 2}, true, [](ProcessGroup& group) {
    std::vector<float> values(group.rank() == 1 ? 50'000 : 60'000);
    group.all_reduce(std::span<float>(values)).wait();
  });
  for (const auto& failure : differ)
    CHECK_THAT(text_of(failure), ContainsSubstring("ranks 0, 2, 3 call all_reduce of 60000 f32") &&
                                     ContainsSubstring("rank 1 calls all_reduce of 50000"));
}

namespace {

/// Two namespaces with a cable between them, in each of which the worker launches two of four ranks. $trouble is what
/// run_cable() is given; without it the cable is the kernel's.
constexpr const char* kTwoHosts = R"(
dir=$1 worker=$2 a=duet-a-$$ b=duet-b-$$
trap 'ip netns del $a; ip netns del $b' EXIT
ip netns add $a && ip netns add $b || exit 77
if [ -z "$trouble" ]; then
  ip link add cable netns $a type veth peer name cable netns $b || exit 77
else
  $worker cable $a $b $trouble > $dir/cable 2> $dir/no_cable & cable=$!
  trap 'kill $cable; wait $cable; ip netns del $a; ip netns del $b' EXIT
  until grep -q ready $dir/cable; do [ -s $dir/no_cable ] && exit 77; sleep 0.02; done
fi
for one in "$a 1" "$b 2"; do
  set -- $one
  ip -n $1 addr add 10.213.7.$2/24 dev cable && ip -n $1 link set cable up && ip -n $1 link set lo up || exit 77
done
umask 077; head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' > $dir/secret
host() {
  DUET_SECRET_FILE=$dir/secret ip netns exec $1 $worker host $2 10.213.7.1 $scenario > $dir/out$2 2> $dir/err$2
  echo $? > $dir/code$2
}
)";

struct TwoHosts {
  explicit TwoHosts(const std::string& scenario, const std::string& commands, const std::string& trouble = "") {
    std::ofstream(scratch.path("script"))
        << "trouble='" << trouble << "' scenario=" << scenario << kTwoHosts << commands << "\nexit 0\n";
    const std::string command =
        concat("/bin/sh ", scratch.path("script"), " ", scratch.path("."), " ", DUET_DDP_WORKER, " 2>&1 >/dev/null");
    status = WEXITSTATUS(std::system(command.c_str()));
  }
  bool impossible() const { return status == 77; }
  std::string text(const char* file) const { return read_text(scratch.path(file)); }
  Scratch scratch;
  int status = 0;
};

constexpr const char* kNoNamespaces = "network namespaces cannot be made here";

}  // namespace

DUET_TEST_UNLESS(why_no_gloo(), "two network namespaces are two hosts, with memory inside and Gloo between") {
  const TwoHosts run("meet", "host $a 0 & host $b 1 & wait");
  if (run.impossible()) DUET_SKIP(kNoNamespaces);
  INFO(run.text("err0") << run.text("err1"));
  CHECK(run.text("code0") == "0\n");
  CHECK(run.text("code1") == "0\n");
  CHECK(run.text("out0") == "tcp+shm 10\ntcp+shm 10\n");
  CHECK(run.text("out1") == run.text("out0"));
}

DUET_TEST_UNLESS(why_no_gloo(), "ranks of a host that never comes are named") {
  const TwoHosts run("alone", "host $a 0");
  if (run.impossible()) DUET_SKIP(kNoNamespaces);
  CHECK(run.text("code0") == "1\n");
  CHECK_THAT(run.text("err0"), ContainsSubstring("ranks 2, 3 of 4 did not join within 2000 ms") ||
                                   ContainsSubstring("ranks 1, 2, 3 of 4 did not join within 2000 ms"));
}

DUET_TEST_UNLESS(why_no_gloo(), "a cut cable ends the job on both sides, and names ranks of the other") {
  const auto begin = Clock::now();
  const TwoHosts run("endless",
                     "host $a 0 & host $b 1 & "
                     "until grep -q going $dir/out0 || [ -e $dir/code0 ]; do sleep 0.02; done; "
                     "ip -n $a link set cable down; wait");
  if (run.impossible()) DUET_SKIP(kNoNamespaces);
  CHECK(run.text("code0") == "1\n");
  CHECK(run.text("code1") == "1\n");
  CHECK_THAT(run.text("err0"), ContainsSubstring("rank 2 ") || ContainsSubstring("rank 3 "));
  CHECK_THAT(run.text("err1"), ContainsSubstring("rank 0 ") || ContainsSubstring("rank 1 "));
  CHECK(Clock::now() - begin < 60s);  // start, timeout, and the end
}

namespace {

constexpr const char* kOnBothHosts = "host $a 0 & one=$!; host $b 1 & other=$!; ";

/// What ranks over a bad cable print, where there can be one: what they print over a good one.
void check_same_sums(const TwoHosts& run) {
  const TwoHosts good("sums", std::string(kOnBothHosts) + "wait $one $other");
  REQUIRE(good.text("out0").size() > 2 * 64);
  INFO(run.text("err0") << run.text("err1"));
  for (const char* file : {"out0", "out1"}) CHECK(run.text(file) == good.text("out0"));
}

int lost_packets(const TwoHosts& run) {
  const std::string text = run.text("cable");
  return std::stoi(text.substr(text.find(", ") + 2));
}

}  // namespace

DUET_TEST_UNLESS(why_no_gloo(),
                 "between hosts with 50 ms there and back, and every 50th packet lost, sums have the same bits") {
  const TwoHosts run("sums", std::string(kOnBothHosts) + "wait $one $other", "25 50");
  if (run.impossible()) DUET_SKIP("network namespaces with devices of a program cannot be made here");
  check_same_sums(run);
  CHECK(lost_packets(run) > 0);
}

DUET_TEST_UNLESS(why_no_gloo(), "a cable from which nothing comes for a while holds sums up, and changes none") {
  const TwoHosts run("sums",
                     std::string(kOnBothHosts) +
                         "until grep -q going $dir/err0 || [ -e $dir/code0 ]; do sleep 0.01; done; "
                         "kill -USR1 $cable; sleep 0.5; kill -USR1 $cable; wait $one $other",
                     "10 0");
  if (run.impossible()) DUET_SKIP("network namespaces with devices of a program cannot be made here");
  check_same_sums(run);
  CHECK(lost_packets(run) > 0);
}

DUET_TEST_UNLESS(why_no_gloo(),
                 "a cable from which nothing comes any more ends the job on both sides, and names ranks of the other") {
  const auto begin = Clock::now();
  const TwoHosts run("endless",
                     std::string(kOnBothHosts) +
                         "until grep -q going $dir/out0 || [ -e $dir/code0 ]; do sleep 0.01; done; "
                         "kill -USR1 $cable; wait $one $other",
                     "1 0");
  if (run.impossible()) DUET_SKIP("network namespaces with devices of a program cannot be made here");
  for (const char* file : {"code0", "code1"}) CHECK(run.text(file) == "1\n");
  CHECK_THAT(run.text("err0"), ContainsSubstring("rank 2 ") || ContainsSubstring("rank 3 "));
  CHECK_THAT(run.text("err1"), ContainsSubstring("rank 0 ") || ContainsSubstring("rank 1 "));
  CHECK_THAT(run.text("err0"), ContainsSubstring(" s for other hosts (ranks 2, 3) in all_reduce #"));
  CHECK_THAT(run.text("err1"), ContainsSubstring(" s for other hosts (ranks 0, 1) in all_reduce #"));
  CHECK(Clock::now() - begin < 60s);
}
