// A rank that connects with another one, among strangers that say anything before, during and after the handshake.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/store.h"
#include "ddp/tcp/tcp_transport.h"
#include "lib/base/descriptor.h"
#include "tests/fuzz/loopback.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

const std::string kAddress = "127.0.0.1";
constexpr Milliseconds kTimeout{60'000};
constexpr int kAnswers = 5000;  // ms

/// See Note [Handshake]. An unauthenticated peer follows it without the secret, or sends other bytes.
void greet(Loopback& client, int port, Input& input) {
  const std::uint8_t wrong = input.take<std::uint8_t>() % 8;
  client.send(wrong == 1 ? input.text() : std::string(kMagic));
  client.send(wrong == 2 ? input.text() : service_mark(wrong == 3 ? "rank 1" : "rank 0"));
  client.send(wrong == 4 ? input.text() : std::string(kRankBytes, '\1'));
  client.send(endpoint_bytes({boost::asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)}) +
              std::string(kNumberBytes, 'n'));
  if (wrong > 0 && wrong < 5) return client.send(input.text());
  const std::size_t challenge = kMagic.size() + kNumberBytes;
  expect(client.receive(challenge, kAnswers).size() == challenge, "a number for what may be a rank");
  client.send(wrong == 5 ? std::string(kProofBytes, 'p') : input.text());
  if (wrong == 6) client.end_sending();
  if (wrong == 5) expect(client.receive(kMagic.size() + 1, kAnswers) == kDenied, "no proof for a stranger");
}

/// The side that closes first would leave a connection behind for a minute: ports run out.
void reset_at_end(const Descriptor& socket) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

void connect(Store& store, int rank) {
  const std::vector<Descriptor> sockets = connect_tcp_mesh(store, rank, 2, kAddress, kTimeout);
  const Descriptor& other = sockets[static_cast<std::size_t>(1 - rank)];
  expect(other.open(), "a connection with the other rank");
  reset_at_end(other);
  const char own = static_cast<char>('0' + rank);
  char received = 0;
  ssize_t got = -1;
  expect(::send(other.get(), &own, 1, MSG_NOSIGNAL) == 1, "a connection that carries bytes");
  pollfd ready{.fd = other.get(), .events = POLLIN, .revents = 0};
  while (got != 1) {
    const int count = ::poll(&ready, 1, kAnswers);
    expect(count == 1 || errno == EINTR, "a byte of the other rank");
    got = ::recv(other.get(), &received, 1, MSG_DONTWAIT);
    expect(got == 1 || errno == EINTR || errno == EAGAIN, "an open connection");
  }
  expect(received == '1' - rank, "what the other rank sent");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  MemoryStore store(kTimeout);
  store.set("tcp/address/1", concat("1 ", kAddress));  // rank 0 answers when all ranks have an address
  std::thread lower([&] { connect(store, 0); });
  const std::string place = store.get("tcp/address/0");
  int port = 0;
  std::from_chars(place.data(), place.data() + place.find(' '), port);
  std::vector<Loopback> unauthenticated;
  const std::size_t count = 1 + input.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    unauthenticated.push_back(Loopback::to(port));
    greet(unauthenticated.back(), port, input);
  }
  connect(store, 1);
  lower.join();
  return 0;
}
