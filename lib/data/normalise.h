// From stored bytes to what the network reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace duet::data {

/// Mean and standard deviation of MNIST's training pixels, as the tutorials subtract and divide.
inline constexpr float kMean = 0.1307f;
inline constexpr float kDeviation = 0.3081f;

/// out[i] = row indices[i] of `rows` (row_bytes bytes each), every byte as (byte / 255 - kMean) / kDeviation in float,
/// rounded after every operation: the bits of torchvision's ToTensor and Normalize. The indices are not checked.
void gather_normalised(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                       float* out);

/// The same from a table of the 256 results: the version for processors without FMA, and the oracle of the other.
void gather_normalised_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                                float* out);

}  // namespace duet::data
