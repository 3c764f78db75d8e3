// The store's server; clients send any bytes before, during and after the handshake.
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/store/tcp_store.h"
#include "ddp/store/tcp_store_server.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/loopback.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

const std::string kSecret = "a secret of the fuzzer", kRun = "run";
constexpr int kAnswers = 5000, kSilence = 6;  // ms

/// See Note [Handshake]. A client completes it, or sends other bytes in place of a part.
void greet(Loopback& client, Input& input) {
  const std::uint8_t wrong = input.take<std::uint8_t>() % 8;
  const std::string mark = store_run_mark(wrong == 1 ? "other" : kRun), number(kStoreNumberBytes, 'n');
  client.send((wrong == 2 ? input.text() : std::string(kStoreMagic)) + (wrong == 3 ? input.text() : mark + number));
  if (wrong >= 1 && wrong <= 3) return;
  const std::string challenge = client.receive(kStoreMagic.size() + kStoreNumberBytes, kAnswers);
  expect(challenge.size() == kStoreMagic.size() + kStoreNumberBytes, "a challenge");
  const std::string other = challenge.substr(kStoreMagic.size());
  client.send(wrong == 4 ? input.text() : store_proof(kSecret, StoreSide::client, mark, number, other));
  if (wrong == 4) return;
  const std::string verdict = client.receive(kStoreMagic.size() + kStoreProofBytes, kAnswers);
  expect(verdict.starts_with(kStoreMagic), "a client with the secret that is accepted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const boost::asio::ip::tcp::endpoint any_port(boost::asio::ip::address_v4::loopback(), 0);
  TcpStoreServer server(any_port, kRun, kSecret, Milliseconds(60'000));
  std::vector<Loopback> clients;
  const std::size_t count = 1 + input.below(3);
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(Loopback::to(server.port()));
    greet(clients.back(), input);
  }
  for (int i = 0; i < 12 && !input.empty(); ++i) clients[input.below(count)].send(frame_of(input, 12));
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
