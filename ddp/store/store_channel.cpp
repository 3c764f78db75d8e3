#include "ddp/store/store_channel.h"

#include <span>

#include "ddp/store/secret.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

std::string hmac(std::string_view key, std::string_view text) {
  const Sha256::Digest digest = hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(text)));
  return {digest.begin(), digest.end()};
}

}  // namespace

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

}  // namespace duet::ddp
