// Stores in memory, in a file and over TCP, and what their server does.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/connection.h"
#include "ddp/store/file_store.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/error.h"
#include "tests/ddp/store/raw_client.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// Two handles on one store, as two ranks have them.
struct TwoRanks {
  std::shared_ptr<Store> a, b;
};

TwoRanks memory_pair(Milliseconds timeout) {
  const auto store = std::make_shared<MemoryStore>(timeout);
  return {store, store};
}
TwoRanks file_pair(const Scratch& scratch, Milliseconds timeout) {
  const std::string path = scratch.path("store");
  return {std::make_shared<FileStore>(path, "run", 2, timeout), std::make_shared<FileStore>(path, "run", 2, timeout)};
}
/// The timeout is that of `a`: it needs no other client to connect in that time.
TwoRanks tcp_pair(Milliseconds timeout) {
  const auto server = std::make_shared<TcpStore>(TcpStoreOptions{.port = 0, .serve = true, .timeout = timeout});
  return {server, std::make_shared<TcpStore>(TcpStoreOptions{.port = server->port(), .timeout = 60s})};
}
TwoRanks any_pair(const Scratch& scratch, int kind, Milliseconds timeout = 10s) {
  return kind == 0 ? memory_pair(timeout) : kind == 1 ? file_pair(scratch, timeout) : tcp_pair(timeout);
}

}  // namespace

TEST_CASE("a store keeps values for all ranks") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  const std::string bytes("\0\xff\n", 3);
  a->set("key", "first");
  a->set("key", bytes);
  CHECK(b->get("key") == bytes);
  a->set("empty", "");
  CHECK(b->get("empty").empty());
  CHECK(b->check({"key", "empty"}));
  CHECK_FALSE(b->check({"key", "missing"}));
  CHECK(b->num_keys() == 2);
  CHECK(a->delete_key("key"));
  CHECK_FALSE(b->delete_key("key"));
  CHECK_FALSE(b->check({"key"}));
  CHECK(b->num_keys() == 1);
  a->append("log", "one,");
  b->append("log", "two");
  CHECK(a->get("log") == "one,two");
  b->multi_set({"x", "y"}, {"1", "2"});
  CHECK(a->multi_get({"y", "x"}) == std::vector<std::string>{"2", "1"});
  CHECK_THROWS_AS(a->multi_set({"x"}, {}), UsageError);
}

TEST_CASE("a store counts") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  CHECK(a->add("count", 3) == 3);
  CHECK(b->add("count", -5) == -2);
  CHECK(a->get("count") == "-2");
  a->set("word", "12a");
  CHECK_THROWS_WITH(b->add("word", 1), ContainsSubstring("word") && ContainsSubstring("12a"));
  a->set("large", "9223372036854775807");
  CHECK_THROWS_AS(b->add("large", 1), CommError);
  CHECK(b->add("count", 1) == -1);  // the store still works
}

TEST_CASE("compare_set follows PyTorch's rules") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  CHECK(a->compare_set("key", "something", "new") == "something");
  CHECK_FALSE(a->check({"key"}));
  CHECK(a->compare_set("key", "", "first") == "first");
  CHECK(b->compare_set("key", "", "second") == "first");
  CHECK(b->compare_set("key", "wrong", "second") == "first");
  CHECK(b->compare_set("key", "first", "second") == "second");
  CHECK(a->get("key") == "second");
}

TEST_CASE("set_missing sets the keys that are missing, and returns the values of all") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  PrefixStore part(b, "part/");
  a->set("part/x", "first");
  CHECK(part.set_missing({"x", "y", "y"}, {"1", "2", "3"}) == std::vector<std::string>{"first", "2", "2"});
  CHECK(a->multi_get({"part/x", "part/y"}) == std::vector<std::string>{"first", "2"});
}

TEST_CASE("a post that the store refuses is the error of the next call, and the store still works") {
  auto [a, b] = tcp_pair(60s);
  b->post(std::string(kMaxKeyBytes + 1, 'k'), "");
  b->post("other", "value");
  CHECK_THROWS_WITH(b->check({"other"}), ContainsSubstring("a store's key has 1 to 4096 bytes, got 4097"));
  CHECK(b->get("other") == "value");
}

TEST_CASE("adding from many threads loses nothing") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  const auto count = [](Store& store) {
    for (int i = 0; i < 50; ++i) store.add("count", 1);
  };
  std::thread other([&, &store = *b] { count(store); });
  std::thread same([&, &store = *a] { count(store); });
  count(*a);
  other.join();
  same.join();
  CHECK(b->get("count") == "150");
}

TEST_CASE("get and wait block until the key is set") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  std::string got;
  std::thread waiting([&got, &store = *b] {
    store.wait({"one", "two"});
    got = store.get("three");
  });
  a->set("one", "");
  a->set("two", "");
  a->set("three", "value");
  waiting.join();
  CHECK(got == "value");
}

TEST_CASE("each value of a key goes to one of those who take it") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  a->post("key", "value");
  CHECK(a->take("key", 60s) == "value");
  CHECK_FALSE(b->check({"key"}));
  MemoryStore store(60s);
  std::thread one([&] { store.take("key", 60s); }), two([&] { store.take("key", 60s); });
  for (int i = 0; i < 2; ++i)
    while (store.compare_set("key", "", std::to_string(i)) != std::to_string(i)) std::this_thread::yield();
  one.join();
  two.join();
}

TEST_CASE("a key that is deleted while others are waited for is waited for again") {
  MemoryStore store(60s);
  std::vector<std::string> got;
  std::thread waiting([&] { got = store.multi_get({"one", "two"}); });
  const auto await_lookups = [&](std::uint64_t count) {
    while (store.lookups() < count) std::this_thread::yield();
  };
  await_lookups(1);  // "two" is missing
  store.set("two", "deleted");
  await_lookups(3);  // then "one"
  store.delete_key("two");
  store.set("one", "1");
  store.set("two", "2");
  waiting.join();
  CHECK(got == std::vector<std::string>{"1", "2"});
}

TEST_CASE("ranks that wait for the keys of all look each of them up twice, in whatever order they come") {
  constexpr int kRanks = 40;
  const bool last_first = GENERATE(false, true);
  MemoryStore store(60s);
  const std::vector<std::string> keys = rank_keys("joined", kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back([&] { store.wait(keys); });
  while (store.lookups() < kRanks) std::this_thread::yield();  // all wait for one key
  for (std::size_t i = 0; i < keys.size(); ++i) store.set(keys[last_first ? keys.size() - 1 - i : i], "");
  for (std::thread& rank : ranks) rank.join();
  CHECK(store.lookups() <= 2 * kRanks * kRanks);
}

TEST_CASE("a timeout names the key") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2), 30ms);
  CHECK_THROWS_WITH(a->get("zz"), ContainsSubstring("waited 30 ms") && ContainsSubstring("zz"));
  b->set("have", "");
  CHECK_THROWS_WITH(a->wait({"have", "not"}, 10ms), ContainsSubstring("10 ms") && ContainsSubstring(" not,"));
  CHECK_THROWS_AS(a->multi_get({"have", "not"}), CommError);
  b->set("zz", "late");
  CHECK(a->get("zz") == "late");  // the store still works
}

TEST_CASE("a store in memory that has failed ends waits for missing keys, before and after") {
  MemoryStore store(1h);
  store.set("there", "");
  std::thread rank([&] {
    store.wait({"start"});
    store.fail("rank 1 has failed");
    store.fail("rank 2 has failed");
  });
  store.set("start", "");
  CHECK_THROWS_WITH(store.wait({"there", "missing"}), "rank 1 has failed");
  rank.join();
  CHECK_THROWS_AS(store.get("missing"), CommError);
  CHECK_THROWS_WITH(store.get("missing"), "rank 1 has failed");
  CHECK(store.get("there").empty());
}

TEST_CASE("keys and values have limits") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  CHECK_THROWS_AS(a->set("", "value"), UsageError);
  CHECK_THROWS_AS(a->set(std::string(kMaxKeyBytes + 1, 'k'), "value"), UsageError);
  CHECK_THROWS_AS(a->set("key", std::string(kMaxValueBytes + 1, 'v')), UsageError);
  a->set("key", std::string(1 << 20, 'v'));
  CHECK(b->get("key").size() == 1 << 20);
}

TEST_CASE("a prefix keeps groups apart") {
  const auto store = std::make_shared<MemoryStore>();
  PrefixStore left(store, "left/");
  PrefixStore right(store, "right/");
  left.set("key", "1");
  CHECK_FALSE(right.check({"key"}));
  CHECK(store->get("left/key") == "1");
}

TEST_CASE("the keys of one prefix are deleted at once, for all ranks") {
  const Scratch scratch;
  const auto [a, b] = any_pair(scratch, GENERATE(0, 1, 2));
  a->multi_set({"a", "a/", "a/1", "a/\xff", "b"}, {"", "", "", "", ""});
  CHECK(b->delete_prefix("a/") == 3);
  CHECK(a->num_keys() == 2);
  CHECK(a->check({"a", "b"}));
  CHECK(b->delete_prefix("a/") == 0);
}

TEST_CASE("the last member's store deletes the keys of all") {
  const auto store = std::make_shared<MemoryStore>();
  auto one = std::make_unique<PrefixStore>(store, "group/", 2),
       other = std::make_unique<PrefixStore>(store, "group/", 2);
  one->set("key", "1");
  one.reset();
  CHECK(other->get("key") == "1");
  other.reset();
  CHECK(store->num_keys() == 0);
  store->fail("the store has ended");
  CHECK_NOTHROW(PrefixStore(store, "group/", 1));
}

TEST_CASE("a taken port is an error with port and errno") {
  const TcpStore first({.port = 0, .serve = true});
  CHECK_THROWS_WITH(TcpStore({.port = first.port(), .serve = true}),
                    ContainsSubstring(std::to_string(first.port())) && ContainsSubstring("errno 98"));
  CHECK_THROWS_WITH(TcpStore({.port = 65536, .serve = true}), ContainsSubstring("from 0 to 65535 but was 65536"));
  CHECK_THROWS_AS(TcpStore({.port = 0}), UsageError);
}

TEST_CASE("a client without a server times out, naming the port") {
  const ReservedPort port("127.0.0.1", 0);
  CHECK_THROWS_WITH(TcpStore({.port = port.port(), .timeout = 120ms}),
                    ContainsSubstring(std::to_string(port.port())) && ContainsSubstring("120 ms"));
}

TEST_CASE("a client reports that its server is gone") {
  auto pair = tcp_pair(10s);
  pair.b->set("key", "value");
  pair.a.reset();
  CHECK_THROWS_WITH(pair.b->get("key"), ContainsSubstring("lost the store"));
}

TEST_CASE("a store that ends as another rank sets its last key answers it") {
  for (int i = 0; i < 100; ++i) {
    auto pair = tcp_pair(10s);
    std::string error;
    std::thread other([&] {
      try {
        pair.b->set("key", "value");
      } catch (const std::exception& caught) {
        error = caught.what();
      }
    });
    pair.a->wait({"key"});
    pair.a.reset();
    other.join();
    REQUIRE(error.empty());
  }
}

TEST_CASE("a rank whose next group meets at the same port waits for the next store") {
  auto server = std::make_unique<TcpStore>(TcpStoreOptions{.port = 0, .serve = true});
  const int port = server->port();
  TcpStore client({.port = port});
  server->accept_no_more();
  client.set("key", "of those who have joined");
  CHECK_THROWS_WITH(TcpStore({.port = port, .timeout = 120ms}), ContainsSubstring("this rank was started twice"));
  CHECK_THROWS_WITH(TcpStore({.port = port, .secret = std::string(32, 'x')}), ContainsSubstring("has another secret"));
  std::string found;
  std::thread next([&] { found = TcpStore({.port = port, .timeout = 60s}).get("key"); });
  server.reset();
  server = std::make_unique<TcpStore>(TcpStoreOptions{.port = port, .serve = true});
  server->set("key", "of the next group");
  next.join();
  CHECK(found == "of the next group");
}

TEST_CASE("the server survives clients of another protocol") {
  const auto [a, b] = tcp_pair(10s);
  const auto port = static_cast<unsigned short>(dynamic_cast<TcpStore&>(*a).port());
  const std::vector<std::string> nonsense = {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", std::string(1000, '\xff'),
                                             "duet-store-v001\nxxxx"};
  const std::vector<std::string> frames = {
      std::string("\xff\xff\xff\xff", 4) + "too long", std::string("\x05\0\0\0", 4) + "short",  // not a whole body
      std::string("\x0d\0\0\0\x01\0\0\0\0\0\0\0\0\xff\xff\xff\x7f", 17),                        // two billion strings
      std::string("\x11\0\0\0\x01\0\0\0\0\0\0\0\0\x01\0\0\0\xff\xff\xff\x7f", 21)};             // of two billion bytes
  for (const std::string& bytes : nonsense) {
    RawClient client(port);
    client.send(bytes);
    client.wait_for_end();
  }
  for (const std::string& bytes : frames) {
    RawClient with_seal(port), without(port);
    with_seal.greet(user_secret());
    with_seal.send_frame(bytes.substr(4), 0);
    with_seal.wait_for_end();
    without.greet(user_secret());
    without.send(bytes + std::string(kSealBytes, 's'));
    without.wait_for_end();
  }
  b->set("still", "alive");
  CHECK(a->get("still") == "alive");
}
