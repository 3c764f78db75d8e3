// A client of the store that sends arbitrary bytes.
#pragma once

#include <string>

#include "ddp/store/asio.h"
#include "ddp/store/tcp_store_wire.h"

namespace duet_test {

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
  /// The whole handshake of Note [Handshake]; returns the server's verdict, and keeps the proof that was sent.
  std::string greet(const std::string& secret, const std::string& replayed = "") {
    using namespace duet::ddp;
    const std::string mark = store_run_mark(""), number(kStoreNumberBytes, 'n');
    send(std::string(kStoreMagic) + mark + number);
    receive(kStoreMagic.size());
    const std::string other = receive(kStoreNumberBytes);
    proof = replayed.empty() ? store_proof(secret, StoreSide::client, mark, number, other) : replayed;
    send(proof);
    return receive(kStoreMagic.size());
  }
  std::string proof;

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  boost::system::error_code error_;
};

}  // namespace duet_test
