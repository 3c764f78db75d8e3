// The store's client; its server sends any bytes before, during and after the handshake.
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/tcp_store.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/loopback.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

const std::string kSecret = "a secret of the fuzzer";
constexpr Milliseconds kTimeout{45};  // less than the client's pause before it tries again
constexpr int kAnswers = 1000;        // ms

class LoopbackListener {
 public:
  LoopbackListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback_address(0);
    socklen_t bytes = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    expect(::bind(socket_.get(), any, bytes) == 0 && ::listen(socket_.get(), 8) == 0, "a listener");
    expect(::getsockname(socket_.get(), any, &bytes) == 0, "a port");
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  /// The next connection, if one comes.
  std::optional<Loopback> accept() const {
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 2 * static_cast<int>(kTimeout.count())) != 1) return {};
    return Loopback(Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  Descriptor socket_;
  int port_ = 0;
};

/// See Note [Handshake]; a server completes it, or sends other bytes in place of a part.
void serve(Loopback& client, Input& input, const std::vector<std::string>& answers) {
  const std::uint8_t wrong = input.take<std::uint8_t>() % 8;
  std::string hello = client.receive(kMagic.size() + kHelloBytes, kAnswers);
  if (hello.size() < kMagic.size() + kHelloBytes) return;  // it has given up
  hello.erase(0, kMagic.size());
  const std::string number(kNumberBytes, 's'), magic(kMagic);
  switch (wrong) {
    case 1: client.send(std::string(kOther)); break;
    case 2: client.send(std::string(input.flag() ? kNoFile : input.flag() ? kComplete : kNoThread)); break;
    case 3: client.send(input.flag() ? std::string(kRelayed) + input.text() : input.text()); break;
    default:
      client.send(magic + number);
      client.receive(kProofBytes, kAnswers);
      const std::string proof = handshake_proof(kSecret, "listener", hello, number);
      client.send(wrong == 4   ? std::string(kDenied)
                  : wrong == 5 ? magic + number
                  : wrong == 6 ? input.text()
                               : magic + proof);
      const std::string key = handshake_proof(kSecret, "session", hello, number);
      for (std::size_t i = 0; i < answers.size() && wrong != 5; ++i)
        client.send(sealed(input, answers[i], key, "server", i));
  }
  client.end_sending();
  while (!client.receive(1 << 16, kAnswers).empty()) {
  }
}

void call(TcpStore& store, std::uint8_t what, const std::string& text) {
  switch (what % 10) {
    case 0: return store.set("key", text);
    case 1: return void(store.get(text));
    case 2: return store.wait({"key", text}, Milliseconds(1));
    case 3: return void(store.add("key", 1));
    case 4: return void(store.check({text}));
    case 5: return void(store.compare_set("key", text, "new"));
    case 6: return void(store.delete_key(text));
    case 7: return void(store.num_keys());
    case 8: return store.append("key", text);
    default: return void(store.multi_get({"key", text}));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const LoopbackListener listener;
  Input input(data, size);
  std::vector<std::uint8_t> questions(1 + input.below(4));
  for (std::uint8_t& what : questions) what = input.take<std::uint8_t>();
  const std::string text = input.text();
  std::vector<std::string> answers(input.below(6));
  for (std::string& answer : answers) answer = frame_of(input, 4);
  std::thread server([&] {
    if (std::optional<Loopback> client = listener.accept()) serve(*client, input, answers);
  });
  accepted([&] {
    TcpStore store({.port = listener.port(), .secret = kSecret, .timeout = kTimeout});
    for (const std::uint8_t what : questions) accepted([&] { call(store, what, text); });
  });
  server.join();
  return 0;
}
