// Frames between TcpStore and its server: a u32 of body bytes, then the body: op or status (u8), timeout in ms (i64),
// number of strings (u32), and each string as u32 bytes and content. Numbers are little-endian. A frame_seal() of
// ddp/store/store_channel.h follows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

inline constexpr std::size_t kMaxFrameBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxFrameStrings = 65'536;

enum class StoreStatus : std::uint8_t { ok, comm_error, usage_error };

struct StoreFrame {
  std::uint8_t code = 0;        // a StoreOp on the way there, a StoreStatus on the way back
  std::int64_t timeout_ms = 0;  // of get and wait
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

}  // namespace duet::ddp
