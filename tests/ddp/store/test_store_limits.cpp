// What a client can make a store hold and do.
#include <cstddef>
#include <string>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/file_store.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/error.h"
#include "tests/ddp/store/raw_client.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::size_t kLarge = kMaxValueBytes - 4096;  // with its key and kEntryBytes a little less than a value's most

}  // namespace

TEST_CASE("a store's table has a limit that its error names, and room again after a key is deleted") {
  StoreTable table;
  const std::string large(kLarge, 'x');
  std::size_t count = 0;
  const auto fill = [&] {
    for (; count < 2 * kMaxTableBytes / kMaxValueBytes; ++count) table.set(std::to_string(count), large);
  };
  CHECK_THROWS_WITH(fill(), ContainsSubstring(concat("room for ", kMaxTableBytes, " bytes")));
  CHECK(count == kMaxTableBytes / kMaxValueBytes);
  CHECK(table.size() == count);
  table.set("0", std::string(kLarge, 'y'));  // in the place of a value of this size
  CHECK_THROWS_AS(table.append("0", large), UsageError);
  CHECK(table.erase("0"));
  CHECK_FALSE(table.erase("0"));
  table.set("another", large);
  const auto add_keys = [&] {
    for (int i = 0; i < 1'000'000; ++i) table.set(concat("key ", i), "");  // empty values take memory too
  };
  CHECK_THROWS_AS(add_keys(), UsageError);
}

TEST_CASE("a store over TCP answers what goes over its limits with an error, and serves on") {
  TcpStore store({.port = 0, .serve = true});
  const std::string large(kLarge, 'x');
  store.set("large", large);
  CHECK_THROWS_WITH(store.multi_get({"large", "large", "large"}),
                    ContainsSubstring(concat("at most ", kMaxFrameBytes, " bytes, got ")));
  CHECK_THROWS_WITH(store.multi_get(std::vector<std::string>(kMaxFrameStrings + 1, "large")),
                    ContainsSubstring(concat("at most ", kMaxFrameStrings, " keys and values")));
  const auto fill = [&] {
    for (int i = 0; i < 32; ++i) store.set(concat("large", i), large);
  };
  CHECK_THROWS_WITH(fill(), ContainsSubstring(concat("room for ", kMaxTableBytes, " bytes")));
  store.set("small", "value");
  CHECK(store.multi_get({"large", "small"}).at(1) == "value");
}

TEST_CASE("a client whose frame holds millions of keys is dropped before the server makes them") {
  constexpr std::size_t kKeys = 6'000'000;
  TcpStore store({.port = 0, .serve = true});
  store.set("k", std::string(4096, 'x'));
  const std::string key("\x01\0\0\0k", 5);
  const auto number = [](std::size_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> 8 * i & 0xff));
    return bytes;
  };
  std::string body(1, static_cast<char>(StoreOp::get));
  body += std::string(8, '\0') + number(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) body += key;
  RawClient client(store.port());
  REQUIRE(client.greet(user_secret()) == kMagic);
  client.send_frame(body, 0);
  CHECK(client.receive(1).empty());  // no answer
  CHECK(store.get("k").size() == 4096);
}
