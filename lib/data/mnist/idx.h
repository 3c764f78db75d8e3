// IDX files, the format of MNIST: big-endian words (a magic number, then the sizes), then bytes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lib/data/mnist/byte_reader.h"
#include "lib/tensor.h"

namespace duet::data {

/// Images of any size: magic 2051, then n, rows, columns, then pixels. Returns u8 (n, 1, rows, columns).
///
/// Throws DataError that names the file, the field, what was found and what was expected: a file that is absent, no
/// regular file, empty, truncated, corrupt, not gzip though named .gz, of another magic, with a size of 0 or beyond
/// what the file can hold or kMostIdxBytes, or with bytes behind the last one. Never reads or allocates more than the
/// header announces. The images of a file that is not packed are not read but mapped: see map_file() in idx.cpp.
Tensor read_idx_images(const std::filesystem::path& path);
Tensor read_idx_images(ByteReader& file);

/// Labels: magic 2049, then n, then bytes below `classes`. Returns i64 (n). Throws as read_idx_images, and for a label
/// that is too large.
Tensor read_idx_labels(const std::filesystem::path& path, int classes = 10);
Tensor read_idx_labels(ByteReader& file, int classes = 10);

inline constexpr std::uint64_t kMostIdxBytes = 1ULL << 32;

}  // namespace duet::data
