// Packed data sets, unpacked once and kept.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lib/tensor.h"

namespace duet::data {

/// read_idx_images(path); but of a gzip file of kWorthKeeping bytes or more an unpacked copy is kept in `folder` and
/// mapped the next time. A copy is used if its CRC-32 is the one at the end of the gzip file (RFC 1952), else replaced.
/// Copies above kMostKept in all go, those used least recently first. Files of several gzip members, and folders that
/// cannot be written, have no copies. Many processes may do this at once.
Tensor read_idx_images_once(const std::filesystem::path& path, const std::filesystem::path& folder);

inline constexpr std::uintmax_t kWorthKeeping = 1 << 20;  // bytes
inline constexpr std::uintmax_t kMostKept = 1 << 30;

}  // namespace duet::data
