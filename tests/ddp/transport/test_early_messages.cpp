// Messages that come before their receive() is called.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/shm/control_block.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/store/store.h"
#include "ddp/tcp/tcp_transport.h"
#include "ddp/transport/message_receiver.h"
#include "ddp/transport/transport.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

using Head = MessageHead;
constexpr std::size_t kMany = (1 << 20) + 3;  // bytes, of a message that takes several pieces of memory

/// Rank 0 sends, rank 1 receives.
struct Pair {
  Pair() {
    std::thread other([&] { ranks[1] = ShmTransport::connect(store, 1, 2, 60s); });
    ranks[0] = ShmTransport::connect(store, 0, 2, 60s);
    other.join();
  }
  ControlBlock& block(int rank) { return ranks[rank]->control_block(); }
  MemoryStore store;
  std::unique_ptr<ShmTransport> ranks[2];
};

std::size_t resident_bytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::vector<std::uint8_t> numbers(std::size_t count) {
  std::vector<std::uint8_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  return values;
}

/// Rank 0 has a transport, rank 1 only its end of the connection.
struct HalfPair {
  HalfPair() {
    std::thread other([&] { raw = std::move(connect_tcp_mesh(store, 1, 2, "127.0.0.1", 60s)[0]); });
    transport = make_tcp_transport(store, 0, 2, {.connect_timeout = 60s});
    other.join();
  }
  void send(const void* data, std::size_t bytes) const {
    for (std::size_t done = 0; done < bytes;) {
      pollfd ready{.fd = raw.get(), .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
      const ssize_t step = ::send(raw.get(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
      REQUIRE((step > 0 || errno == EAGAIN));
      if (step > 0) done += static_cast<std::size_t>(step);
    }
  }
  MemoryStore store;
  std::unique_ptr<Transport> transport;
  Descriptor raw;
};

}  // namespace

TEST_CASE("an early message over shared memory takes memory as it arrives, not as it announces") {
  constexpr std::uint64_t kAnnounced = std::uint64_t{1} << 29;
  Pair two;
  const std::size_t before = resident_bytes();
  const Head announced{0, kAnnounced};
  ByteRing(two.block(0).ring_memory(0, 1)).write(std::as_bytes(std::span(&announced, 1)));
  two.ranks[1]->progress();
  CHECK(resident_bytes() < before + kAnnounced / 4);
}

TEST_CASE("an early message over shared memory arrives whole, whenever it is received") {
  const bool on_the_way = GENERATE(false, true);
  Pair two;
  ShmTransport &sender = *two.ranks[0], &receiver = *two.ranks[1];
  std::vector<std::uint8_t> sent = numbers(kMany), got(kMany);
  const auto sending = sender.send(1, 0, sent.data(), kMany);
  Transport::Request receiving = -1;
  for (std::size_t i = 0; i < 2 * kMany / ByteRing::kRoom; ++i) {
    sender.progress();
    receiver.progress();
    if (on_the_way && i == 0) receiving = receiver.receive(0, 0, got.data(), kMany);
  }
  if (!on_the_way) receiving = receiver.receive(0, 0, got.data(), kMany);
  sender.wait(sending, Clock::now());
  receiver.wait(receiving, Clock::now());
  CHECK(got == sent);
}

TEST_CASE("an early message over shared memory is received while a part of the next header is there") {
  Pair two;
  const std::vector<std::uint8_t> sent = numbers(8);
  const Head first{0, 8}, second{1, 8};
  ByteRing ring(two.block(0).ring_memory(0, 1));
  ring.write(std::as_bytes(std::span(&first, 1)));
  ring.write(std::as_bytes(std::span(sent)));
  ring.write(std::as_bytes(std::span(&second, 1)).first(sizeof(Head) / 2));
  two.ranks[1]->progress();
  std::vector<std::uint8_t> got(8);
  two.ranks[1]->wait(two.ranks[1]->receive(0, 0, got.data(), 8), Clock::now());
  CHECK(got == sent);
}

TEST_CASE("an early message over TCP takes memory as it arrives, not as it announces") {
  HalfPair two;
  float value = 0;
  const auto request = two.transport->receive(1, 7, &value, sizeof value);
  const Head announced{8, std::uint64_t{1} << 40};  // more than there is
  two.send(&announced, sizeof announced);
  two.send("abcd", 4);
  ::shutdown(two.raw.get(), SHUT_WR);
  CHECK_THROWS_WITH(two.transport->wait(request, Clock::now() + 60s), "rank 1 sent nothing: connection closed by peer");
}

TEST_CASE("early messages over TCP arrive whole, whenever they are received, and after the connection's end") {
  HalfPair two;
  const std::vector<std::uint8_t> sent = numbers(kMany);
  std::vector<std::uint8_t> early(kMany), late(kMany);
  float value = 0;
  const auto request = two.transport->receive(1, 7, &value, sizeof value);
  for (const std::uint64_t tag : {std::uint64_t{8}, std::uint64_t{9}}) {
    const Head head{tag, kMany};
    two.send(&head, sizeof head);
    two.send(sent.data(), kMany);
  }
  const Head head{7, sizeof value};
  const float one = 1;
  two.send(&head, sizeof head);
  two.send(&one, sizeof one);
  const auto first = two.transport->receive(1, 8, early.data(), kMany);  // here, on the way or still to come
  two.transport->wait(request, Clock::now() + 60s);
  CHECK(value == 1);
  two.transport->wait(first, Clock::now() + 60s);
  CHECK(early == sent);
  two.raw.close();
  const auto lost = two.transport->receive(1, 10, &value, sizeof value);
  CHECK_THROWS_AS(two.transport->wait(lost, Clock::now() + 60s), CommError);
  two.transport->wait(two.transport->receive(1, 9, late.data(), kMany), Clock::now() + 60s);
  CHECK(late == sent);
}

TEST_CASE("a rank that announces a message of another size than expected, or of none, is named") {
  const auto [bytes, text] = GENERATE(std::pair<std::uint64_t, const char*>{8, "it sent 8 bytes, expected 4"},
                                      std::pair<std::uint64_t, const char*>{0, "a message of 0 bytes"},
                                      std::pair<std::uint64_t, const char*>{(std::uint64_t{1} << 40) + 1, "bytes"});
  const bool posted = GENERATE(false, true);
  HalfPair two;
  float value = 0;
  const Head head{7, bytes};
  if (!posted) two.send(&head, sizeof head);
  const auto request = two.transport->receive(1, 7, &value, sizeof value);
  if (posted) two.send(&head, sizeof head);
  CHECK_THROWS_WITH(two.transport->wait(request, Clock::now() + 60s),
                    ContainsSubstring("rank 1 sent nothing: ") && ContainsSubstring(text));
}
