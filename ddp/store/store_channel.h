// The store's frames over an authenticated connection. Private to ddp: this header includes Asio.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ddp/store/connection.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/monotonic.h"

namespace duet::ddp {

inline constexpr std::size_t kSealBytes = 32;

/// HMAC-SHA256 of a frame's body under a key of its own, that of its place among the frames that one end ("client" or
/// "server") has sent: none can be changed, repeated, left out, or sent back to where it came from.
std::string frame_seal(const std::string& session_key, std::string_view sender, std::uint64_t number,
                       std::string_view body);

/// Frames as encode() makes them, each with its frame_seal() after it. Not thread-safe.
class StoreChannel {
 public:
  StoreChannel(Connection& connection, std::string session_key, bool server)
      : connection_(connection), key_(std::move(session_key)), server_(server) {}
  /// Throws UsageError for a frame over the limits, of which nothing is sent; LostConnection.
  void send(const StoreFrame& frame, Clock::time_point deadline);
  /// Throws LostConnection; CommError for what the other end did not send, after which the channel is of no use.
  StoreFrame receive(Clock::time_point deadline);

 private:
  Connection& connection_;
  const std::string key_;
  const bool server_;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace duet::ddp
