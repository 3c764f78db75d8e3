// Frames between TcpStore and its server: a u32 of body bytes, then the body: op or status (u8), timeout in ms (i64),
// number of strings (u32), and each string as u32 bytes and content. Numbers are little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

/// Note [Handshake]: both sides prove that they have the secret, and neither sends it. Fresh random numbers make every
/// proof worthless for another connection.
///   client: kStoreMagic, store_run_mark(), its number
///   server: kStoreMagic, its number; or kStoreOther, where it serves another run; or kStoreFull
///   client: its proof
///   server: kStoreMagic, its proof; or kStoreDenied
/// The client proves first: any process may connect, and could test secrets offline against a proof of the server.
/// A side that receives anything else closes the connection. What follows is neither encrypted nor signed.
inline constexpr std::string_view kStoreMagic = "duet-store-v004\n";
inline constexpr std::string_view kStoreOther = "duet-store-other";
inline constexpr std::string_view kStoreFull = "duet-store-full\n";  // this was its process's last file descriptor
inline constexpr std::string_view kStoreDenied = "duet-store-deny\n";
inline constexpr std::size_t kStoreRunBytes = 32, kStoreNumberBytes = 32, kStoreProofBytes = 32;
enum class StoreSide : std::uint8_t { client, server };
std::string store_proof(const std::string& secret, StoreSide side, std::string_view run_mark,
                        std::string_view client_number, std::string_view server_number);
/// Distinguishes runs; no secret.
std::string store_run_mark(const std::string& run);
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
