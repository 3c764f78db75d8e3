// A ring buffer of bytes from one rank to another, in memory that both map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace duet::ddp {

/// One end of it: one rank only writes, the other only reads. Neither ever waits. Both throw CommError when the
/// counters are not those of a ring: the other rank can have written anything there.
class ByteRing {
 public:
  static constexpr std::size_t kRoom = 64 << 10;
  static constexpr std::size_t kBytes = kRoom + 256;

  /// `memory`: kBytes bytes, zero at first.
  explicit ByteRing(std::byte* memory) : memory_(memory) {}
  /// Writes a beginning of `data`, as much as there is room for; returns how many bytes.
  std::size_t write(std::span<const std::byte> data);
  /// Reads what is there, at most `data`; returns how many bytes.
  std::size_t read(std::span<std::byte> data);

 private:
  // Bytes written and read since the start; they wrap around.
  std::atomic<std::uint32_t>& written() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_); }
  std::atomic<std::uint32_t>& taken() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + 128); }
  std::byte* ring() const { return memory_ + 256; }
  std::byte* memory_;
};

}  // namespace duet::ddp
