#include "lib/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/base/text.h"

namespace duet {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian_word(const std::byte* bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

}  // namespace

void Sha256::absorb(const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t t = 0; t < 16; ++t) w[t] = big_endian_word(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> out = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += out[i];
}

void Sha256::update(std::span<const std::byte> bytes) {
  const std::size_t held = total_ % 64;
  total_ += bytes.size();
  if (held > 0) {
    const std::size_t taken = std::min(64 - held, bytes.size());
    std::copy_n(bytes.data(), taken, pending_.data() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < 64) return;
    absorb(pending_.data());
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) absorb(bytes.data());
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
}

Sha256::Digest Sha256::digest() const {
  // Padding (FIPS 180-4, 5.1.1): a one bit, zeros, and the length in bits as a big-endian 64-bit number.
  Sha256 last = *this;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const std::size_t zeros_end = 1 + (119 - total_ % 64) % 64;
  for (std::size_t i = 0; i < 8; ++i) padding[zeros_end + i] = static_cast<std::byte>(total_ * 8 >> (56 - 8 * i));
  last.update(std::span(padding).first(zeros_end + 8));
  Digest digest;
  for (std::size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(last.state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string Sha256::hex() const {
  const Digest bytes = digest();
  return to_hex(std::as_bytes(std::span(bytes)));
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.update(bytes);
  return sum.hex();
}

Sha256::Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes) {
  std::array<std::byte, 64> block{};
  if (key.size() > block.size()) {
    Sha256 shorter;
    shorter.update(key);
    const Sha256::Digest digest = shorter.digest();
    std::copy_n(std::as_bytes(std::span(digest)).begin(), digest.size(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  const auto keyed = [&](std::byte pad, std::span<const std::byte> message) {
    std::array<std::byte, 64> padded;
    std::transform(block.begin(), block.end(), padded.begin(), [&](std::byte one) { return one ^ pad; });
    Sha256 hash;
    hash.update(padded);
    hash.update(message);
    return hash.digest();
  };
  const Sha256::Digest inner = keyed(std::byte{0x36}, bytes);
  return keyed(std::byte{0x5c}, std::as_bytes(std::span(inner)));
}

std::uint64_t mixed_bytes(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 8> sums{}, orders{};  // sums, and sums of those, in lanes that are added at once
  for (; bytes.size() >= sizeof sums; bytes = bytes.subspan(sizeof sums)) {
    std::array<std::uint64_t, 8> words;
    std::memcpy(words.data(), bytes.data(), sizeof words);
    for (std::size_t i = 0; i < sums.size(); ++i) orders[i] += sums[i] += words[i];
  }
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) hash = mixed(mixed(hash, sums[i]), orders[i]);
  for (const std::byte byte : bytes) hash = mixed(hash, static_cast<std::uint64_t>(byte));
  return hash;
}

}  // namespace duet
