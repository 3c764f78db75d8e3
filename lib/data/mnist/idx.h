// IDX files, the format of MNIST: big-endian words (a magic number, then the sizes), then bytes; gzip'ed or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "lib/tensor.h"

namespace duet::data {

/// Reads a regular file from its beginning to its end, unpacking gzip (RFC 1952, any number of members) on the way.
/// Holds 64 KiB of the file at a time. Every error is a DataError that begins with the file's name. Not thread-safe.
class ByteReader {
 public:
  /// A file whose name ends with .gz must be gzip; another one may be, by its first two bytes.
  explicit ByteReader(const std::filesystem::path& path);
  /// Reads the content of a file from memory; `name` is for messages and decides about .gz. The bytes must outlive it.
  ByteReader(std::span<const std::uint8_t> content, std::string name);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Fills `out` as far as there are bytes; returns their number. Throws DataError for damaged gzip data, for a gzip
  /// file that ends early, and for bytes behind the end of the gzip data.
  std::size_t read(std::span<std::uint8_t> out);
  /// Size of the file as it is stored.
  std::uint64_t stored_bytes() const;
  /// No more than this many bytes can come out of the file: deflate packs at most 1032 bytes into one.
  std::uint64_t most_bytes() const;
  const std::string& name() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

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
