// Stores that cannot be reached: names that are not known yet, hosts that are mute, calls that were cancelled.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

#include "ddp/store/connection.h"
#include "ddp/store/network.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using duet_test::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

std::atomic<int> unknown_for{0};  // so many more times is "late.test" not known

}  // namespace

/// The program's own getaddrinfo(), which stands before libc's: a name that becomes known later.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* kind, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string_view(host) != "late.test") return real(host, service, kind, found);
  if (unknown_for > 0) return --unknown_for, EAI_NONAME;
  return real("127.0.0.1", service, kind, found);
}

TEST_CASE("a host whose name is not known yet is asked for again, by the rank that serves and by the others") {
  unknown_for = 2;
  TcpStore server({.host = "late.test", .port = 0, .serve = true, .timeout = 60s});
  CHECK(unknown_for == 0);
  unknown_for = 2;
  TcpStore client({.host = "late.test", .port = server.port(), .timeout = 60s});
  CHECK(unknown_for == 0);
  server.set("key", "value");
  CHECK(client.get("key") == "value");
  unknown_for = 2;
  CHECK(address_towards("late.test", 60s) == "127.0.0.1");
}

TEST_CASE("a host whose name stays unknown is named when the time is over") {
  CHECK_THROWS_WITH(TcpStore({.host = "never.test", .port = 29500, .timeout = 300ms}),
                    ContainsSubstring("cannot find the host never.test within "));
  CHECK_THROWS_WITH(address_towards("never.test", 1ms), ContainsSubstring("cannot find the host never.test"));
}

TEST_CASE("an address is read in every spelling that has one meaning, and one that can never be found fails at once") {
  const auto read = [](const char* text, bool needs_port = false) {
    const HostAndPort place = parse_endpoint(text, "--at", needs_port);
    return concat(place.host, '|', place.port);
  };
  for (const char* const text : {"host:1", "h_1.a-b.:1", "10.0.0.1:1", "[::1]:1", "[fe80::1%lo]:1"}) {
    CAPTURE(text);
    CHECK(read(text) == read(text, true));
    CHECK(read(text).ends_with("|1"));
    CHECK(read(text).find('[') == std::string::npos);
  }
  CHECK(read("::1") == "::1|");
  CHECK(read("[::1]") == "::1|");
  CHECK(read("::1:29500", true) == "::1|29500");
  CHECK(read("::1:29500") == "::1|29500");  // no part of an address has five digits
  CHECK_THROWS_WITH(read("::1:2950"), ContainsSubstring("--at is ::1:2950") && ContainsSubstring("[::1]:2950"));
  CHECK(parse_host("[::1]", "--at") == "::1");
  const std::string label(64, 'a');
  for (const std::string host : {"", "host:1", "a b", "a/b", "a..b", ".a", "[a]", "[::1", "::1%lo", "fe80::1", ":::1",
                                 "fe80::1%nope0", "1.2.3.256", "1.2.3.4.5", "a\n", label.c_str()}) {
    CAPTURE(host);
    CHECK_THROWS_WITH(parse_host(host, "--at"), ContainsSubstring("--at is " + host + ", expected a host"));
    CHECK_THROWS_AS(parse_endpoint(host + ":1", "--at", true), UsageError);
    CHECK_THROWS_AS(address_of_host(host, 600s), UsageError);
  }
  CHECK_THROWS_WITH(address_of_host("never.invalid", 1s), !ContainsSubstring("within"));
}

TEST_CASE("a store that does not answer is named with its address and what to look at") {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor mute(io, {boost::asio::ip::address_v4::loopback(), 0});
  const std::string place = concat("127.0.0.1 port ", mute.local_endpoint().port());
  CHECK_THROWS_WITH(
      TcpStore({.port = mute.local_endpoint().port(), .timeout = 300ms}),
      ContainsSubstring("no store answered at " + place + " within 300 ms (lost the store of rank 0 at " + place +
                        ": no answer in time; has the process of rank 0 ended or been stopped, or does a firewall lie "
                        "between?); has rank 0 started"));
}

TEST_CASE("a descriptor ends the wait for a store that is mute, or isn't there yet") {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor mute(io, {boost::asio::ip::address_v4::loopback(), 0});
  const int port = mute.local_endpoint().port();
  if (GENERATE(false, true)) mute.close();
  const Descriptor readable(::eventfd(1, EFD_CLOEXEC));
  const auto begin = Clock::now();
  CHECK_THROWS_AS(TcpStore({.port = port, .timeout = 60s, .interrupt = readable.get()}), CommError);
  CHECK(Clock::now() - begin < 20s);
}

TEST_CASE("no error shows the number of a cancelled call, nor that of another category as errno") {
  CHECK(error_text(boost::asio::error::operation_aborted) == "this process has ended the connection");
  CHECK(error_text(boost::asio::error::eof) == "connection closed");
  CHECK(error_text(boost::asio::error::connection_refused) == "Connection refused (errno 111)");
  CHECK(error_text(boost::asio::error::host_not_found).find("errno") == std::string::npos);
}
