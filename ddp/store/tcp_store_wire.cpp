#include "ddp/store/tcp_store_wire.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "ddp/store/secret.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kFrameHeadBytes = sizeof(std::uint8_t) + sizeof(std::int64_t) + sizeof(std::uint32_t);

template <class T>
void put(std::string& out, T value) {
  auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8) out.push_back(static_cast<char>(bits & 0xff));
}

/// Takes a number off the front of `in`; false if it is too short.
template <class T>
bool take(std::string_view& in, T& value) {
  if (in.size() < sizeof(T)) return false;
  std::uint64_t bits = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(in[i]);
  value = static_cast<T>(bits);
  in.remove_prefix(sizeof(T));
  return true;
}

}  // namespace

void check_frame(std::size_t count, std::size_t total) {
  require<UsageError>(count <= kMaxFrameStrings, "a store's message has at most ", kMaxFrameStrings,
                      " keys and values, got ", count);
  const std::size_t bytes = kFrameHeadBytes + count * sizeof(std::uint32_t) + total;
  require<UsageError>(bytes <= kMaxFrameBytes, "a store's message has at most ", kMaxFrameBytes, " bytes, got ", bytes);
}

std::string encode(const StoreFrame& frame) {
  std::size_t total = 0;
  for (const std::string& text : frame.strings) total += text.size();
  check_frame(frame.strings.size(), total);
  std::string body;
  put(body, frame.code);
  put(body, frame.timeout_ms);
  put(body, static_cast<std::uint32_t>(frame.strings.size()));
  for (const std::string& text : frame.strings) {
    put(body, static_cast<std::uint32_t>(text.size()));
    body += text;
  }
  std::string out;
  put(out, static_cast<std::uint32_t>(body.size()));
  return out + body;
}

bool decode(std::string_view body, StoreFrame& frame) {
  std::uint32_t count = 0;
  if (!take(body, frame.code) || !take(body, frame.timeout_ms) || !take(body, count)) return false;
  if (count > std::min(body.size() / sizeof(std::uint32_t), kMaxFrameStrings))
    return false;  // before memory is set aside for them
  frame.strings.clear();
  frame.strings.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t bytes = 0;
    if (!take(body, bytes) || bytes > body.size()) return false;
    frame.strings.emplace_back(body.substr(0, bytes));
    body.remove_prefix(bytes);
  }
  return body.empty();
}

std::uint32_t decode_length(std::string_view four_bytes) {
  std::uint32_t length = std::numeric_limits<std::uint32_t>::max();
  take(four_bytes, length);
  return length;
}

std::string frame_seal(const std::string& session_key, std::string_view sender, std::uint64_t number,
                       std::string_view body) {
  return hmac(hmac(session_key, concat(sender, ' ', number)), body);
}

void StoreChannel::send(const StoreFrame& frame, Clock::time_point deadline) {
  std::string bytes = encode(frame);
  const std::string_view body = std::string_view(bytes).substr(sizeof(std::uint32_t));
  bytes += frame_seal(key_, server_ ? "server" : "client", sent_++, body);
  connection_.write(bytes, deadline);
}

StoreFrame StoreChannel::receive(Clock::time_point deadline) {
  const std::uint32_t length = decode_length(connection_.read(sizeof(std::uint32_t), deadline));
  require<CommError>(length <= kMaxFrameBytes, "a frame of ", length, " bytes came, expected at most ", kMaxFrameBytes);
  const std::string body = connection_.read(length, deadline);
  const std::string seal = connection_.read(kSealBytes, deadline);
  require<CommError>(equal_secrets(seal, frame_seal(key_, server_ ? "client" : "server", received_++, body)),
                     "a frame was changed on the way");
  StoreFrame frame;
  require<CommError>(decode(body, frame), "a malformed frame came");
  return frame;
}

namespace {

constexpr Milliseconds kLongestWait = std::chrono::hours(24);

StoreFrame failure(StoreStatus status, const Error& error) {
  return {static_cast<std::uint8_t>(status), 0, {error.what()}};
}

}  // namespace

TcpStoreServer::TcpStoreServer(ListenerOptions options)
    : listener_("the store", std::move(options), [this](Listener::Caller& client) { serve(client); }) {}

TcpStoreServer::~TcpStoreServer() {
  ends_ = true;
  table_.fail("the store has ended");
}

void TcpStoreServer::serve(Listener::Caller& client) {
  StoreChannel channel(client.connection, client.identity.session_key, true);
  for (std::optional<StoreFrame> refusal;;) {  // of a post
    StoreFrame request = channel.receive(kNoDeadline);
    const bool is_post = request.code == static_cast<std::uint8_t>(StoreOp::post);
    StoreFrame reply = is_post || !refusal ? answer(std::move(request)) : *std::exchange(refusal, {});
    if (is_post) {
      if (reply.code != static_cast<std::uint8_t>(StoreStatus::ok) && !refusal) refusal = std::move(reply);
      continue;
    }
    try {
      channel.send(reply, kNoDeadline);
    } catch (const UsageError& error) {  // it is too large for one frame
      channel.send(failure(StoreStatus::usage_error, error), kNoDeadline);
    }
  }
}

StoreFrame TcpStoreServer::answer(StoreFrame request) {
  const Milliseconds timeout(std::clamp<std::int64_t>(request.timeout_ms, 0, kLongestWait.count()));
  try {
    return {static_cast<std::uint8_t>(StoreStatus::ok), 0,
            table_.request(static_cast<StoreOp>(request.code), std::move(request.strings), timeout)};
  } catch (const UsageError& error) {
    return failure(StoreStatus::usage_error, error);
  } catch (const Error& error) {
    if (ends_) throw;  // ends the connection, by which the client knows
    return failure(StoreStatus::comm_error, error);
  }
}

}  // namespace duet::ddp
