// Every port on which duet listens lies in the range that the user names.
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/rank_threads.h"
#include "ddp/store/network.h"
#include "ddp/store/tcp_store.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/variable.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

/// `count` ports after each other that are free now.
PortRange free_ports(int count) {
  for (int first = 20'011; first < 30'000; first += 97) {
    std::vector<std::unique_ptr<ReservedPort>> taken;
    try {
      for (int i = 0; i < count; ++i) taken.push_back(std::make_unique<ReservedPort>("127.0.0.1", first + i));
      return {first, first + count - 1, ""};
    } catch (const CommError&) {
    }
  }
  throw CommError("there are no free ports");
}

std::string text_of(const PortRange& ports) { return concat(ports.first, "-", ports.last); }

}  // namespace

TEST_CASE("a range of ports is two numbers in order") {
  const PortRange ports = parse_port_range("30000-30010", "a");
  CHECK(ports.first == 30000);
  CHECK(ports.last == 30010);
  CHECK(describe(ports) == "any of the ports 30000-30010 (DUET_PORT_RANGE)");
  for (const char* text : {"", "-", "1", "1-", "-1", "2-1", "0-1", "1-65536", "1-2-3", "a-b", "1 -2"})
    CHECK_THROWS_WITH(parse_port_range(text, "a"),
                      ContainsSubstring(concat("a is \"", text, "\", expected FIRST-LAST")));
  const duet_test::Variable wrong(kPortRangeVariable, "x");
  CHECK_THROWS_WITH(TcpStore({.port = 0, .serve = true}), ContainsSubstring("DUET_PORT_RANGE is \"x\""));
}

TEST_CASE("stores and launchers take the free ports of the range, one each, and name it when it is used up") {
  const PortRange ports = free_ports(3);
  const duet_test::Variable range(kPortRangeVariable, text_of(ports));
  const std::string used_up = concat(" any of the ports ", text_of(ports), " (DUET_PORT_RANGE): ");
  std::set<int> taken;
  {
    const TcpStore one({.port = 0, .serve = true});
    const ReservedPort kept("127.0.0.1", 0, port_range());
    const TcpStore two({.port = 0, .serve = true});  // not the port that is kept, on which nothing listens
    taken = {one.port(), kept.port(), two.port()};
    CHECK(taken == std::set{ports.first, ports.first + 1, ports.first + 2});
    const TcpStore rank_0({.port = kept.port(), .serve = true});
    CHECK_THROWS_WITH(TcpStore({.port = 0, .serve = true}),
                      ContainsSubstring("the store cannot listen on 127.0.0.1" + used_up));
    CHECK_THROWS_WITH(ReservedPort("127.0.0.1", 0, port_range()),
                      ContainsSubstring("the job cannot use 127.0.0.1" + used_up));
    TcpStore({.port = one.port()}).set("key", "value");
  }
  const TcpStore again({.port = 0, .serve = true});  // connections on the ports may be ending
  CHECK(taken.contains(again.port()));
}

TEST_CASE("ranks over TCP listen in the range, or name it") {
  const PortRange ports = free_ports(4);  // the store's and a rank's each
  CHECK(run_worker(3, {"rounds", "3", "tcp"}, {.port_range = text_of(ports)}).result.message.empty());
  const std::string few = concat(ports.first, "-", ports.first + 2);
  const Outcome outcome = run_worker(3, {"rounds", "3", "tcp"}, {.port_range = few});
  CHECK_THAT(outcome.result.message, ContainsSubstring(concat("cannot listen on 127.0.0.1 any of the ports ", few)));
  CHECK_THROWS_WITH(run_worker(2, {"rounds", "3"}, {.master_port = ports.last, .port_range = few}),
                    ContainsSubstring(concat("port ", ports.last, " is not in the range of ports ", few)));
}

TEST_CASE("threads that are ranks listen in the range") {
  const PortRange ports = free_ports(2);
  const duet_test::Variable range(kPortRangeVariable, concat(ports.first, "-", ports.first));
  CHECK_THROWS_WITH(run_rank_threads(2, [](ProcessGroup&) {}, {.backend = "tcp"}),
                    ContainsSubstring("cannot listen on 127.0.0.1 any of the ports"));
}

TEST_CASE("under torchrun on several hosts the store takes a port of the range") {
  const auto run_in = [](const std::string& ports) {
    return run(2, {"/bin/sh", "-c",
                   "export TORCHELASTIC_USE_AGENT_STORE=True DUET_SECRET=0123456789abcdef DUET_PORT_RANGE=" + ports +
                       "; unset LOCAL_WORLD_SIZE LOCAL_RANK; exec " DUET_DDP_WORKER " rounds 3 tcp"})
        .result.message;
  };
  const PortRange ports = free_ports(3);
  CHECK(run_in(text_of(ports)) == "");
  const TcpStore other({.port = ports.first, .serve = true});
  CHECK_THAT(run_in(concat(ports.first, "-", ports.first)),  // says the rank that fails first
             ContainsSubstring(concat("the store cannot listen on 127.0.0.1 port ", ports.first)) ||
                 ContainsSubstring(concat("the store at 127.0.0.1 port ", ports.first, " serves another run")));
}

DUET_TEST_UNLESS(why_no_gloo(), "Gloo, which takes ports of its own, is refused with a range") {
  CHECK_THAT(run_worker(2, {"rounds", "3", "gloo"}, {.port_range = text_of(free_ports(3))}).result.message,
             ContainsSubstring("backend gloo takes a port of its own for each pair of ranks") &&
                 ContainsSubstring("expected backend tcp"));
}
