// MD5 (RFC 1321), by which data sets are published. A check against damage, not against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace duet::data {

/// The digest of `bytes` as 32 lower-case hexadecimal digits.
std::string md5_hex(std::span<const std::uint8_t> bytes);

}  // namespace duet::data
