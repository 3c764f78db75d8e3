// Hashes: SHA-256 (FIPS 180-4), for fingerprints of parameters and of checkpoint files, and quick ones of numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace duet {

/// The digest of bytes that arrive in pieces. Not thread-safe; use one object per stream of bytes.
class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void update(std::span<const std::byte> bytes);
  /// The digest of everything so far; more bytes may follow.
  Digest digest() const;
  /// The digest as 64 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  void absorb(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};  // the first total_ % 64 bytes of the next block
  std::uint64_t total_ = 0;              // bytes seen
};

/// The digest of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

/// HMAC-SHA256 (RFC 2104): only a holder of the key can compute it.
Sha256::Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes);

/// The hash of a sequence of numbers, from that of all but the last and the last. The first is mixed with any start.
/// Gives equal hashes on every machine; not for secrets.
inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  const std::uint64_t product = (hash ^ (number + 1)) * 0x9e3779b97f4a7c15u;  // Fibonacci hashing
  return product ^ product >> 32;
}
/// Likewise of bytes in memory, at about its speed.
std::uint64_t mixed_bytes(std::span<const std::byte> bytes);

}  // namespace duet
