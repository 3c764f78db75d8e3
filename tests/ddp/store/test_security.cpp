// Authentication of the store's clients, and where it listens.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/store/other_user.h"
#include "tests/ddp/store/raw_client.h"
#include "tests/support/catch2.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scratch.h"
#include "tests/support/variable.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

const std::string kRefused(kDenied), kWelcome(kMagic);

std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Sends one kind of invalid bytes to the port.
void disturb(int port, int kind) {
  RawClient client(port);
  const std::string magic(kMagic), number(kNumberBytes, 'x');
  if (kind == 0) client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  if (kind == 1) client.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + number);  // TLS
  if (kind == 2) client.send(random_bytes(4096));
  if (kind == 3) client.send(magic + client.hello() + std::string(kProofBytes, 'p'));
  if (kind == 4) client.send(magic + std::string(kHelloBytes, 'r'));
  if (kind == 5) client.send(magic.substr(0, 7));
}

}  // namespace

TEST_CASE("the store and its clients prove to each other that they have the secret") {
  const TcpStore server({.port = 0, .secret = kSecret, .serve = true, .handshake_timeout = 60s});
  TcpStore client({.port = server.port(), .secret = kSecret});
  client.set("key", "value");
  CHECK_THROWS_WITH(TcpStore({.port = server.port(), .secret = kSecret + "!"}),
                    ContainsSubstring("has another secret than this rank"));
  CHECK_THROWS_WITH(TcpStore({.port = server.port()}), ContainsSubstring("that of the user in a folder of $TMPDIR"));
  RawClient right(server.port()), wrong(server.port()), replaying(server.port()), relayed(server.port());
  CHECK(right.greet(kSecret) == kWelcome);
  CHECK(wrong.greet("another secret") == kRefused);
  CHECK(wrong.wait_for_end().empty());
  CHECK(replaying.greet("", right.proof) == kRefused);  // the server's number was another one then
  const std::string elsewhere = endpoint_bytes({boost::asio::ip::address_v4::loopback(), 1});
  CHECK(relayed.greet(kSecret, "", elsewhere) == kRefused);  // by a relay that has put in the endpoint that it calls
  CHECK(client.get("key") == "value");
}

TEST_CASE("a store that does not prove that it has the secret is refused") {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  const int port = acceptor.local_endpoint().port();
  std::thread impostor([&] {
    auto client = acceptor.accept();
    std::string received(kMagic.size() + kHelloBytes, '\0');
    boost::asio::read(client, boost::asio::buffer(received));
    boost::asio::write(client, boost::asio::buffer(std::string(kMagic) + std::string(kNumberBytes, 'n')));
    received.resize(kProofBytes);
    boost::asio::read(client, boost::asio::buffer(received));
    boost::asio::write(client, boost::asio::buffer(std::string(kMagic) + received));  // the client's own proof
  });
  CHECK_THROWS_WITH(TcpStore({.port = port, .secret = kSecret}),
                    ContainsSubstring("has another secret than this rank"));
  impostor.join();
}

TEST_CASE("beyond loopback there must be a secret") {
  for (const bool serve : {true, false})
    for (const char* host : {"0.0.0.0", "192.0.2.1", "::"}) {
      const TcpStoreOptions options{.host = host, .port = 29543, .serve = serve, .timeout = 1ms};
      CHECK_THROWS_AS(TcpStore(options), UsageError);
      CHECK_THROWS_WITH(TcpStore(options),
                        ContainsSubstring("need a secret") && ContainsSubstring(kSecretFileVariable));
    }
  TcpStore asked({.host = "0.0.0.0", .port = 0, .secret = kSecret, .serve = true});
  asked.set("key", "value");
}

TEST_CASE("ranks of one host meet on loopback where they have no secret") {
  using Environment = std::vector<std::pair<std::string, std::string>>;
  const Environment one_host = {{"MASTER_ADDR", "192.0.2.1"}, {kSecretVariable, ""}};
  CHECK(run_worker(2, {"rounds", "3"}, {.environment = one_host}).result.message.empty());
  Environment unknown = one_host;
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}) unknown.emplace_back(name, "");
  CHECK_THAT(run_worker(2, {"rounds", "3"}, {.environment = unknown}).result.message,
             ContainsSubstring("ranks that meet at 192.0.2.1, beyond this host, need a secret"));
}

TEST_CASE("by default the store listens on loopback only") {
  const TcpStore store({.port = 0, .serve = true});
  char port[8];
  std::snprintf(port, sizeof(port), ":%04X", static_cast<unsigned>(store.port()));
  int found = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if (state != "0A" || !local.ends_with(port)) continue;  // 0A: listening
      CHECK(local == std::string("0100007F") + port);
      ++found;
    }
  }
  CHECK(found == 1);
}

TEST_CASE("a secret comes from a file of one's own, or from a variable") {
  const Scratch scratch;
  CHECK(given_secret().empty());
  {
    const duet_test::Variable text(kSecretVariable, kSecret);
    CHECK(given_secret() == kSecret);
    const std::string path = scratch.path("secret");
    std::ofstream(path) << "one in a file, of enough bytes\n";
    ::chmod(path.c_str(), 0600);
    const duet_test::Variable file(kSecretFileVariable, path);
    CHECK(given_secret() == "one in a file, of enough bytes");
    ::chmod(path.c_str(), 0640);
    const std::string expected = concat("expected user ", ::geteuid(), "'s, with mode 0600");
    CHECK_THROWS_WITH(given_secret(),
                      ContainsSubstring(concat("is user ", ::geteuid(), "'s, with mode 0640; " + expected)));
    if (why_no_other_user()[0] != '\0') DUET_SKIP(why_no_other_user());
    REQUIRE(::chown(path.c_str(), kOtherUser, kOtherUser) == 0);
    ::chmod(path.c_str(), 0600);
    CHECK_THROWS_WITH(given_secret(), ContainsSubstring("is user 65534's, with mode 0600; " + expected));
  }
  const duet_test::Variable missing(kSecretFileVariable, scratch.path("missing"));
  CHECK_THROWS_WITH(given_secret(), ContainsSubstring("errno 2"));
  const duet_test::Variable folder(kSecretFileVariable, scratch.path("."));
  CHECK_THROWS_WITH(given_secret(), ContainsSubstring("is not a file"));
  ::unsetenv(kSecretFileVariable);
  const duet_test::Variable small(kSecretVariable, "fifteen letters");
  CHECK_THROWS_WITH(given_secret(), ContainsSubstring("16 to 4096 bytes, got 15"));
}

TEST_CASE("a launch on one host gives its ranks a secret that it makes up, unless it was given one") {
  const auto secrets = [](LaunchOptions options = {}) {
    const Outcome outcome = run_worker(2, {"environment", kSecretVariable}, std::move(options));
    REQUIRE(outcome.result.exit_code == 0);
    REQUIRE(outcome.out.at(0) == outcome.out.at(1));
    return outcome.out.at(0).at(0);
  };
  const std::string one = secrets();
  CHECK(one.size() == 64);
  CHECK(one != secrets());
  const duet_test::Variable given(kSecretVariable, kSecret);
  CHECK(secrets() == kSecret);
}

TEST_CASE("a thousand unauthenticated peers are dropped, and leave nothing behind") {
  TcpStore server({.port = 0, .secret = kSecret, .serve = true});
  TcpStore client({.port = server.port(), .secret = kSecret});
  const std::size_t before = open_files();
  for (int i = 0; i < 1000; ++i) disturb(server.port(), i % 6);
  std::vector<std::unique_ptr<RawClient>> idle;  // more than the server keeps; a rank gets in all the same
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<RawClient>(server.port()));
  client.set("still", "alive");
  CHECK(TcpStore({.port = server.port(), .secret = kSecret}).get("still") == "alive");
  for (const auto& one : idle) one->wait_for_end();  // all are hung up on
  idle.clear();
  const auto deadline = Clock::now() + 60s;
  while (open_files() > before && Clock::now() < deadline) client.get("still");
  CHECK(open_files() <= before);
}

TEST_CASE("garbage sent to the port for a whole run changes nothing") {
  const Scratch scratch;
  const ReservedPort port("127.0.0.1", 0);
  const Outcome quiet = run_worker(2, {"rounds", "200"});
  std::atomic<bool> over = false;
  std::thread garbage([&] {
    for (int sent = 0; !over;) {
      try {
        disturb(port.port(), sent % 6);
        if (++sent == 100) write_text(scratch.path("over"), "");
      } catch (const boost::system::system_error&) {  // no store listens yet, or no more
        std::this_thread::yield();
      }
    }
  });
  const Outcome disturbed = run_worker(2, {"rounds_until_over", "200", scratch.folder()}, {.master_port = port.port()});
  over = true;
  garbage.join();
  CHECK(disturbed.result.message.empty());
  CHECK(disturbed.out == quiet.out);
}

TEST_CASE("unauthenticated peers do not make rank 0's memory grow") {
  constexpr int kWarm = 500, kAll = 3500;
  const Scratch scratch;
  const ReservedPort port("127.0.0.1", 0);
  std::atomic<bool> ended = false;
  std::thread garbage([&] {
    const auto once_it_listens = [&](auto&& connect) {
      try {
        connect();
      } catch (const boost::system::system_error&) {
        std::this_thread::yield();
      }
    };
    std::vector<std::unique_ptr<RawClient>> idle;  // as many threads as there are at most use their stacks
    while (idle.size() < 100 && !ended)
      once_it_listens([&] { idle.push_back(std::make_unique<RawClient>(port.port())); });
    for (const auto& one : idle) one->send(std::string(kMagic) + one->hello() + std::string(kProofBytes, 'p'));
    for (const auto& one : idle) one->wait_for_end();
    for (int sent = 0; sent < kAll && !ended;) {
      once_it_listens([&] {
        disturb(port.port(), sent % 6);
        if (++sent == kWarm) write_text(scratch.path("warm"), "");
      });
    }
    write_text(scratch.path("over"), "");
  });
  const Outcome run = run_worker(2, {"until_over", scratch.folder()}, {.master_port = port.port()});
  ended = true;
  garbage.join();
  CHECK(run.result.message.empty());
  REQUIRE(run.out.count(0) == 1);
  const std::int64_t kib = std::stoll(run.out.at(0).at(0));
  CAPTURE(kib);
#ifndef DUET_SANITIZED  // they keep what was freed for a while
  CHECK(kib < 1024);
#endif
}

TEST_CASE("IPv6 serves stores and launches and Gloo") {
  try {
    TcpStore({.host = "::1", .port = 0, .serve = true});
  } catch (const CommError&) {
    DUET_SKIP("there is no IPv6 here");
  }
  TcpStore server({.host = "::1", .port = 0, .serve = true});
  server.set("key", "value");
  CHECK(server.local_address() == "::1");
  for (const char* backend : {"auto", "gloo"}) {
    if (backend == std::string("gloo") && !why_no_gloo().empty()) continue;
    const Outcome outcome = run_worker(2, {"rounds", "5", backend}, {.master_address = "[::1]"});
    CHECK(outcome.result.message.empty());
    CHECK(outcome.out.at(0) == outcome.out.at(1));
  }
}

TEST_CASE("an interface is chosen by its name") {
  CHECK(address_of("lo") == "127.0.0.1");
  CHECK(address_towards("127.0.0.1", 0ms) == "127.0.0.1");
  CHECK_THROWS_WITH(address_towards("nowhere.invalid", 0ms), ContainsSubstring("cannot find the host nowhere.invalid"));
  CHECK_THROWS_WITH(address_of("nope0"), ContainsSubstring("nope0") && ContainsSubstring("lo"));
  if (!why_no_gloo().empty()) DUET_SKIP("Gloo is not built");
  CHECK(run_worker(2, {"rounds", "5", "gloo"}, {.interface = "lo"}).result.message.empty());
  CHECK_THAT(run_worker(2, {"rounds", "5", "gloo"}, {.interface = "nope0"}).result.message,
             ContainsSubstring("DUET_INTERFACE is nope0, but the interfaces of this host"));
}
