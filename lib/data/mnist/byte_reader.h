// Bytes of a file, unpacked if it is gzip'ed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace duet::data {

/// Reads a regular file from its beginning to its end, unpacking gzip (RFC 1952, any number of members) on the way.
/// Holds 64 KiB of the file at a time. Every error is a DataError that begins with the file's name. Not thread-safe.
class ByteReader {
 public:
  /// A file whose name ends with .gz must be gzip; another one may be, by its first two bytes.
  explicit ByteReader(const std::filesystem::path& path);
  /// The same for the content of a file; `name` is for messages and decides about .gz. The bytes must outlive it.
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

}  // namespace duet::data
