// Packed data sets, unpacked once and kept.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lib/tensor.h"

namespace duet::data {

/// read_idx_images(path); but of a gzip file of kWorthKeeping bytes or more an unpacked copy is kept in `folder` and
/// mapped the next time. The copy's name holds the size and time of change of `path`, so a changed file is unpacked
/// anew and its old copy removed; a damaged copy is replaced. Where `folder` cannot be written, nothing is kept. Many
/// processes may do this at once.
Tensor read_idx_images_once(const std::filesystem::path& path, const std::filesystem::path& folder);

inline constexpr std::uintmax_t kWorthKeeping = 1 << 20;

}  // namespace duet::data
