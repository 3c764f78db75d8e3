// From stored bytes to the network's input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace duet::data {

/// Mean and standard deviation of training pixels, which are numbers from 0 to 1.
struct PixelStatistics {
  float mean, deviation;
};
/// As the tutorials subtract and divide.
inline constexpr PixelStatistics kMnistPixels = {0.1307f, 0.3081f}, kFashionMnistPixels = {0.2860f, 0.3530f};

/// Turns bytes into (byte / 255 - mean) / deviation in float, rounded after every operation: the bits of torchvision's
/// ToTensor and Normalize. Never changes: any threads may use one.
class Normaliser {
 public:
  /// Throws UsageError unless both numbers are finite and the deviation is above 0.
  explicit Normaliser(const PixelStatistics& pixels);
  const PixelStatistics& pixels() const { return pixels_; }
  float operator()(std::uint8_t byte) const { return table_[byte]; }

  /// out[i] = row indices[i] of `rows` (row_bytes bytes each). The indices are not checked.
  void gather(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices, float* out) const;
  /// The same from the table of the 256 results: the version for processors without FMA, and the oracle of the other.
  void gather_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                       float* out) const;

 private:
  PixelStatistics pixels_;
  std::array<float, 256> table_;
  bool by_table_;  // without FMA, or where its division does not give the table's bits
};

}  // namespace duet::data
