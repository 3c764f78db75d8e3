// A client of the store that sends arbitrary bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ddp/store/connection.h"
#include "ddp/store/tcp_store_wire.h"

namespace duet_test {

inline const std::string kSecret = "sixteen bytes or more";

class RawClient {
 public:
  explicit RawClient(int port) {
    socket_.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<unsigned short>(port)});
  }
  /// The other side may hang up in the middle of it.
  void send(const std::string& bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes), error_); }
  std::string receive(std::size_t bytes) {
    std::string text(bytes, '\0');
    text.resize(boost::asio::read(socket_, boost::asio::buffer(text), error_));
    return text;
  }
  /// Until the server hangs up; returns what it sent before.
  std::string wait_for_end() {
    std::string text;
    for (std::string more = receive(1); !more.empty(); more = receive(1)) text += more;
    return text;
  }
  /// What Note [Handshake] calls the hello, for the store of a run without a name. `called`: another endpoint than the
  /// one that was called.
  std::string hello(const std::string& called = "") {
    using namespace duet::ddp;
    return service_mark("the store of run ") + std::string(kRankBytes, '\0') +
           (called.empty() ? endpoint_bytes(socket_.remote_endpoint()) : called) + std::string(kNumberBytes, 'n');
  }
  /// The whole handshake; returns the server's verdict, and keeps the proof that was sent.
  std::string greet(const std::string& secret, const std::string& replayed = "", const std::string& called = "") {
    using namespace duet::ddp;
    send(std::string(kMagic) + hello());
    receive(kMagic.size());
    const std::string number = receive(kNumberBytes);
    proof = replayed.empty() ? handshake_proof(secret, "caller", hello(called), number) : replayed;
    send(proof);
    const std::string verdict = receive(kMagic.size());
    if (verdict == kMagic) receive(kProofBytes);
    key_ = handshake_proof(secret, "session", hello(called), number);
    return verdict;
  }
  /// The body of a frame, as the client's frame of this number. `sealed`: the body that the seal is for.
  void send_frame(const std::string& body, std::uint64_t number, const std::string& sealed = "") {
    std::string length;
    for (int i = 0; i < 4; ++i) length.push_back(static_cast<char>(body.size() >> 8 * i & 0xff));
    send(length + body + duet::ddp::frame_seal(key_, "client", number, sealed.empty() ? body : sealed));
  }
  std::string proof;

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  boost::system::error_code error_;
  std::string key_;
};

}  // namespace duet_test
