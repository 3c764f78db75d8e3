// Secrets: one for each job, hard to guess, and kept from programs that ranks start.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/variable.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

const std::string kRandom = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

}  // namespace

TEST_CASE("jobs that are given one secret have keys of their own, and a rank of one is none of another") {
  TcpStore first({.port = 0, .run = "a", .secret = kRandom, .serve = true});
  TcpStore second({.port = 0, .run = "a", .secret = kRandom, .serve = true});
  TcpStore client({.port = first.port(), .run = "a", .secret = kRandom});
  CHECK(client.secret() == first.secret());
  CHECK(first.secret() != second.secret());
  CHECK(first.secret() != kRandom);
  Listener listener(
      "rank 0", {.endpoint = {boost::asio::ip::address_v4::loopback(), 0}, .credentials = {first.secret(), "rank 0"}},
      [](Listener::Caller&) {});
  const auto call = [&](TcpStore& store) {
    boost::asio::io_context io;
    boost::asio::ip::tcp::socket socket(io);
    socket.connect({boost::asio::ip::address_v4::loopback(), static_cast<unsigned short>(listener.port())});
    Connection connection(std::move(socket));
    authenticate(connection, {store.secret(), "rank 0"}, 1, "rank 0", Clock::now() + 60s).finish(Clock::now() + 60s);
  };
  CHECK_NOTHROW(call(client));
  CHECK_THROWS_WITH(call(second), ContainsSubstring("has another secret than this rank"));
}

TEST_CASE("programs that ranks start do not inherit the secret, but ranks of a launcher in one do") {
  const std::string secret = GENERATE(std::string(), kRandom);  // made up, or given
  const duet_test::Variable given(kSecretVariable, secret);
  const Outcome outcome = run_worker(2, {"programs"});
  CHECK(outcome.result.message == "");
  REQUIRE(outcome.out.count(1) == 1);
  std::vector<std::string> lines = outcome.out.at(1);
  REQUIRE(lines.size() == 6);
  const std::string kept = lines.back();
  CHECK(kept.size() == 64);
  CHECK((secret.empty() || kept == secret));
  std::sort(lines.begin(), lines.end());
  std::vector<std::string> expected = {kept, "kept " + kept, "kernel: ", "shm 3", "shm 3", "variable []"};
  std::sort(expected.begin(), expected.end());
  CHECK(lines == expected);
}
