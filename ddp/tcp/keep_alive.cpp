#include "ddp/tcp/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace duet::ddp {
namespace {

constexpr int kHeartbeatS = 1;

bool is_tcp_connection(int descriptor) {
  int type = 0, family = 0;
  socklen_t size = sizeof(type);
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof(peer);
  return ::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         ::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
         (family == AF_INET || family == AF_INET6) &&
         ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0;
}

}  // namespace

std::set<int> tcp_connections() {
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (is_tcp_connection(descriptor)) found.insert(descriptor);
  }
  return found;
}

// Without these options a connection lasts as before, so a failure is no error.
void keep_alive(int connection, Milliseconds limit) {
  const int on = 1, beat = kHeartbeatS;
  const auto most = static_cast<int>(std::min<Milliseconds::rep>(limit.count(), 1 << 30));
  ::setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPIDLE, &beat, sizeof(beat));
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPINTVL, &beat, sizeof(beat));
  ::setsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof(most));
}

}  // namespace duet::ddp
