// Hashes of numbers, the same on every machine; not for secrets.
#pragma once

#include <cstdint>

namespace duet {

/// The hash of a sequence of numbers, from that of all but the last and the last. The first is mixed with any start.
inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  const std::uint64_t product = (hash ^ (number + 1)) * 0x9e3779b97f4a7c15u;  // Fibonacci hashing
  return product ^ product >> 32;
}

}  // namespace duet
