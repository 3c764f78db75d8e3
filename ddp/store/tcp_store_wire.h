// Both ends of TcpStore's connections: frames, how they are sealed, and the server. Private to ddp: this header
// includes Asio.
//
// A frame is a u32 of body bytes, then the body: op or status (u8), timeout in ms (i64), number of strings (u32), and
// each string as u32 bytes and content. Numbers are little-endian. A frame_seal() follows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/store.h"
#include "lib/monotonic.h"

namespace duet::ddp {

inline constexpr std::size_t kMaxFrameBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxFrameStrings = 65'536;

enum class StoreStatus : std::uint8_t { ok, comm_error, usage_error };

struct StoreFrame {
  std::uint8_t code = 0;        // a StoreOp on the way there, a StoreStatus on the way back
  std::int64_t timeout_ms = 0;  // for get and wait
  std::vector<std::string> strings;
};

/// The frame with its length in front. Throws UsageError past kMaxFrameBytes or kMaxFrameStrings.
std::string encode(const StoreFrame& frame);
/// What encode() throws, before the strings are in a frame: `total` is their bytes.
void check_frame(std::size_t count, std::size_t total);
/// Reads a body; false if it is malformed in any way or has more than kMaxFrameStrings.
bool decode(std::string_view body, StoreFrame& frame);
/// The length in front of a body.
std::uint32_t decode_length(std::string_view four_bytes);

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

/// Serves one table, each client on a thread of its own, until destroyed.
class TcpStoreServer {
 public:
  /// Throws CommError with port and errno when it cannot listen.
  explicit TcpStoreServer(ListenerOptions options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  int port() const { return listener_.port(); }
  Store& table() { return table_; }
  void accept_no_more() { listener_.accept_no_more(); }

 private:
  void serve(Listener::Caller& client);
  /// The answer to a request, or the error that it throws.
  StoreFrame answer(StoreFrame request);

  std::atomic<bool> ends_{false};
  MemoryStore table_{kStoreTimeout, check_frame};
  Listener listener_;
};

}  // namespace duet::ddp
