// Another user's process between ranks that passes on what they send, and many ranks that come at once.
#include <sys/wait.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/connection.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/store/tcp_store_wire.h"
#include "ddp/tcp/tcp_transport.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/store/other_user.h"
#include "tests/ddp/store/raw_client.h"
#include "tests/ddp/transport/proxy.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// What `action` throws names a relay, by its own port and the one that it passes on to.
template <class Action>
void check_names_relay(Action&& action, int own, int target) {
  const std::string text = error_of<CommError>(action);
  CHECK_THAT(text, ContainsSubstring(
                       concat("127.0.0.1 port ", own, " is a relay, which passes on to 127.0.0.1 port ", target)));
}

/// Puts a relay's port in the place of rank 0's.
class RelayedStore final : public Store {
 public:
  RelayedStore() : Store(60s) {}
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override {
    if (op == StoreOp::post && strings.at(0) == "tcp/address/0") {
      target = std::stoi(strings.at(1));
      relay = std::make_unique<Proxy>("127.0.0.1", target, Trouble{});
      strings[1] = concat(relay->port(), " 127.0.0.1");
    }
    return inner_.request(op, std::move(strings), timeout);
  }
  std::unique_ptr<Proxy> relay;
  int target = 0;

 private:
  MemoryStore inner_{60s};
};

/// Two ranks as torchrun starts them, in a network namespace of their own. torchrun's store has port 29500, and another
/// user, who listens at the next, passes on to the one after that.
constexpr const char* kUnderTorchrun = R"(
dir=$1 worker=$2
ip link set lo up || exit 77
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=run WORLD_SIZE=2
export DUET_JOIN_TIMEOUT_MS=20000 DUET_SECRET=0123456789abcdef TMPDIR=$dir
$worker relay 29500 1 > $dir/agent & agent=$!
$worker relay 29501 29502 65534 > $dir/relay 2> $dir/no_relay & relay=$!
until grep -q ready $dir/agent && grep -q ready $dir/relay; do [ -s $dir/no_relay ] && exit 77; sleep 0.02; done
for rank in 0 1; do
  if [ $hosts = 1 ]; then export LOCAL_WORLD_SIZE=2 LOCAL_RANK=$rank; else export LOCAL_WORLD_SIZE=1 LOCAL_RANK=0; fi
  RANK=$rank $worker rounds 20 tcp > $dir/out$rank 2> $dir/err$rank & eval rank$rank=$!
done
wait $rank1; code1=$?
[ $code1 = 0 ] || kill $rank0
wait $rank0; echo "$? $code1" > $dir/codes
kill $agent $relay; wait $relay
)";

struct UnderTorchrun {
  explicit UnderTorchrun(int hosts) {
    std::ofstream(scratch.path("script")) << "hosts=" << hosts << kUnderTorchrun << "exit 0\n";
    const std::string command = concat("unshare -n /bin/sh ", scratch.path("script"), " ", scratch.path("."), " ",
                                       DUET_DDP_WORKER, " 2>/dev/null >/dev/null");
    status = WEXITSTATUS(std::system(command.c_str()));
  }
  bool impossible() const { return status != 0; }
  std::string text(const char* file) const { return read_text(scratch.path(file)); }
  Scratch scratch;
  int status = 0;
};

constexpr const char* kNoNamespace = "no other user's process in a network namespace can be started here";

}  // namespace

TEST_CASE("under torchrun on one host the ranks do not meet at a port of another user") {
  if (*why_no_other_user()) DUET_SKIP(why_no_other_user());
  const UnderTorchrun run(1);
  if (run.impossible()) DUET_SKIP(kNoNamespace);
  INFO(run.text("err0") << run.text("err1"));
  CHECK(run.text("codes") == "0 0\n");
  CHECK(run.text("out0") == "30\n");
  CHECK(run.text("out1") == "30\n");
  CHECK(run.text("relay") == "ready\n0 bytes\n");
}

TEST_CASE("under torchrun on several hosts another user's process between the ranks ends the job, and is named") {
  if (*why_no_other_user()) DUET_SKIP(why_no_other_user());
  const UnderTorchrun run(2);
  if (run.impossible()) DUET_SKIP(kNoNamespace);
  CHECK_FALSE(run.text("codes").ends_with(" 0\n"));
  check_names_relay([&] { throw CommError(run.text("err1")); }, 29501, 29502);
}

TEST_CASE("a client of the store that comes through a relay ends with an error that names it") {
  TcpStore server({.port = 0, .secret = kSecret, .serve = true});
  const Proxy relay("127.0.0.1", server.port(), {});
  check_names_relay([&] { TcpStore({.port = relay.port(), .secret = kSecret}); }, relay.port(), server.port());
  TcpStore({.port = server.port(), .secret = kSecret}).set("key", "value");
  CHECK(server.get("key") == "value");
}

TEST_CASE("a frame that a client has not sent in this place, or not at all, changes nothing in the store") {
  TcpStore server({.port = 0, .secret = kSecret, .serve = true});
  const auto body = [](const char* amount) {
    return encode({static_cast<std::uint8_t>(StoreOp::add), 0, {"sum", amount}}).substr(sizeof(std::uint32_t));
  };
  const std::size_t one_answer = encode({0, 0, {"1"}}).size() + kSealBytes;
  RawClient repeated(server.port()), changed(server.port()), skipped(server.port());
  for (RawClient* client : {&repeated, &changed, &skipped}) REQUIRE(client->greet(kSecret) == kMagic);
  repeated.send_frame(body("1"), 0);
  repeated.send_frame(body("1"), 0);
  CHECK(repeated.wait_for_end().size() == one_answer);
  changed.send_frame(body("2"), 0, body("3"));
  CHECK(changed.wait_for_end().empty());
  skipped.send_frame(body("2"), 1);
  CHECK(skipped.wait_for_end().empty());
  CHECK(server.get("sum") == "1");
}

TEST_CASE("a client of the store finds that an answer was changed on the way; address translation is let through") {
  const ReservedPort port("127.0.0.1", 0);
  constexpr std::size_t kHandshake = 3 * kMagic.size() + kHelloBytes + kNumberBytes + 2 * kProofBytes;
  const Proxy way("127.0.0.1", port.port(), {.change_after = kHandshake});
  TcpStore server(
      {.port = port.port(), .secret = kSecret, .serve = true, .reached_host = "127.0.0.1", .reached_port = way.port()});
  TcpStore client({.port = way.port(), .secret = kSecret});
  CHECK_THROWS_WITH(client.set("key", "value"),
                    ContainsSubstring(concat("lost the store of rank 0 at 127.0.0.1 port ", way.port(),
                                             ": a frame was changed on the way")));
}

TEST_CASE("ranks with a relay between them do not connect, and it is named") {
  RelayedStore store;
  std::string lower;
  std::thread other([&] { lower = error_of<CommError>([&] { connect_tcp_mesh(store, 0, 2, "127.0.0.1", 500ms); }); });
  store.wait({"tcp/address/0"});
  check_names_relay([&] { connect_tcp_mesh(store, 1, 2, "127.0.0.1", 60s); }, store.relay->port(), store.target);
  other.join();
  CHECK_THAT(lower, ContainsSubstring("rank 0 could not connect with rank 1 within 500 ms"));
}

#ifdef DUET_SANITIZED  // they take memory for every process
constexpr int kManyRanks = 80;
#else
constexpr int kManyRanks = 150;
#endif

TEST_CASE("more ranks than a rank answers at once connect over TCP") {
  const ReservedPort port("127.0.0.1", 0);
  const Outcome outcome = run_worker(1, {"join_ranks", std::to_string(kManyRanks), std::to_string(port.port())});
  CHECK(outcome.errors().empty());
  CHECK(outcome.out.at(0).at(0).starts_with(concat(kManyRanks, " of ", kManyRanks, " ")));
}
