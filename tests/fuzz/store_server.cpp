// The store's server; clients send any bytes before, during and after the handshake.
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/tcp_store.h"
#include "ddp/store/tcp_store_wire.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/loopback.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

const std::string kSecret = "a secret of the fuzzer", kRun = "run";
constexpr int kAnswers = 5000, kSilence = 6;  // ms

/// See Note [Handshake]. A client completes it, or sends other bytes in place of a part. Returns the session's key.
std::string greet(Loopback& client, int port, Input& input) {
  const std::uint8_t wrong = input.take<std::uint8_t>() % 8;
  const int called = wrong == 5 ? port - 1 : port;
  const std::string hello =
      service_mark(wrong == 1 ? "other" : "the store of run " + kRun) + std::string(kRankBytes, '\0') +
      endpoint_bytes({boost::asio::ip::address_v4::loopback(), static_cast<unsigned short>(called)}) +
      std::string(kNumberBytes, 'n');
  client.send((wrong == 2 ? input.text() : std::string(kMagic)) + (wrong == 3 ? input.text() : hello));
  if (wrong == 5)
    expect(client.receive(kMagic.size() + kEndpointBytes, kAnswers).starts_with(kRelayed), "a relay that is named");
  if ((wrong >= 1 && wrong <= 3) || wrong == 5) return "no key";
  const std::string challenge = client.receive(kMagic.size() + kNumberBytes, kAnswers);
  expect(challenge.size() == kMagic.size() + kNumberBytes, "a challenge");
  const std::string other = challenge.substr(kMagic.size());
  client.send(wrong == 4 ? input.text() : handshake_proof(kSecret, "caller", hello, other));
  if (wrong == 4) return "no key";
  const std::string verdict = client.receive(kMagic.size() + kProofBytes, kAnswers);
  expect(verdict.starts_with(kMagic), "a client with the secret that is accepted");
  return handshake_proof(kSecret, "session", hello, other);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const boost::asio::ip::tcp::endpoint any_port(boost::asio::ip::address_v4::loopback(), 0);
  TcpStoreServer server({.endpoint = any_port,
                         .credentials = {kSecret, "the store of run " + kRun},
                         .handshake_timeout = Milliseconds(60'000)});
  std::vector<Loopback> clients;
  std::vector<std::string> keys;
  const std::size_t count = 1 + input.below(3);
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(Loopback::to(server.port()));
    keys.push_back(greet(clients.back(), server.port(), input));
  }
  std::vector<std::uint64_t> sent(count);
  for (int i = 0; i < 12 && !input.empty(); ++i) {
    const std::size_t at = input.below(count);
    const std::string frame = frame_of(input, 12);
    clients[at].send(sealed(input, frame, keys[at], "client", sent[at]++));
  }
  for (Loopback& client : clients) {
    client.end_sending();
    while (!client.receive(1 << 16, kSilence).empty()) {
    }
  }
  TcpStore valid({.port = server.port(), .run = kRun, .secret = kSecret, .timeout = Milliseconds(kAnswers)});
  valid.set("valid", "value");
  expect(valid.get("valid") == "value", "a server that still serves");
  return 0;
}
