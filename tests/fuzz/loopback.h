// A connection over loopback whose every wait ends.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/descriptor.h"
#include "tests/fuzz/input.h"

namespace duet_fuzz {

inline sockaddr_in loopback_address(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class Loopback {
 public:
  explicit Loopback(duet::ddp::Descriptor socket) : socket_(std::move(socket)) {
    // The side that closes first would leave a connection behind for a minute: ports run out.
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  static Loopback to(int port) {
    duet::ddp::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback_address(port);
    int error = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
    if (error == EINTR) {  // by libFuzzer's timer: the connection is made all the same
      pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
      while (::poll(&connected, 1, -1) < 0 && errno == EINTR) continue;
      socklen_t size = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    expect(error == 0, "a listener that accepts");
    return Loopback(std::move(socket));
  }

  /// The other side may be gone.
  void send(const std::string& bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t step = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (step < 0 && errno == EINTR) continue;  // by libFuzzer's timer
      if (step <= 0) return;
      done += static_cast<std::size_t>(step);
    }
  }
  void end_sending() { ::shutdown(socket_.get(), SHUT_WR); }
  /// At most `most` bytes; fewer where the peer closes, or sends nothing for `silence_ms`.
  std::string receive(std::size_t most, int silence_ms) {
    std::string text(most, '\0');
    std::size_t done = 0;
    while (done < most) {
      pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      const int count = ::poll(&ready, 1, silence_ms);
      if (count < 0 && errno == EINTR) continue;
      if (count != 1) break;
      const ssize_t step = ::recv(socket_.get(), text.data() + done, most - done, 0);
      if (step < 0 && errno == EINTR) continue;
      if (step <= 0) break;
      done += static_cast<std::size_t>(step);
    }
    text.resize(done);
    return text;
  }

 private:
  duet::ddp::Descriptor socket_;
};

}  // namespace duet_fuzz
