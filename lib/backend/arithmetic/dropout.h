// One decision of dropout, the same on every device: see DropoutKey in backend.h.
#pragma once

#include <cstdint>

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// What all decisions of one dropout in one step share.
struct DropoutDraw {
  std::uint64_t seed = 0, step = 0;
  std::uint64_t first_row = 0;  // number that the tensor's row 0 has in the global batch
  std::uint32_t layer = 0, threshold = 0;
};

/// Four random words: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct PhiloxWords {
  std::uint32_t word[4];
};

DUET_HOST_DEVICE inline PhiloxWords philox(PhiloxWords x, std::uint64_t seed) {
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53} * x.word[0], second = std::uint64_t{0xcd9e8d57} * x.word[2];
    x = {{static_cast<std::uint32_t>(second >> 32) ^ x.word[1] ^ key0, static_cast<std::uint32_t>(second),
          static_cast<std::uint32_t>(first >> 32) ^ x.word[3] ^ key1, static_cast<std::uint32_t>(first)}};
    key0 += 0x9e3779b9U;
    key1 += 0xbb67ae85U;
  }
  return x;
}

/// Number of decisions that one call of dropout_words gives, kDropoutLanes elements apart.
inline constexpr int kDropoutNumbers = 8;
inline constexpr int kDropoutLanes = 16;

/// The words that decide elements chunk * 128 + lane + 16 * j of a row, j = 0..7, where index = 16 * chunk + lane.
DUET_HOST_DEVICE inline PhiloxWords dropout_words(const DropoutDraw& draw, std::int64_t row, std::uint32_t index) {
  return philox({{index, static_cast<std::uint32_t>(draw.first_row + static_cast<std::uint64_t>(row)),
                  static_cast<std::uint32_t>(draw.step), draw.layer}},
                draw.seed);
}

/// Whether the j-th of these eight elements is kept.
DUET_HOST_DEVICE inline bool dropout_keeps(const DropoutDraw& draw, const PhiloxWords& words, int j) {
  const std::uint32_t word = words.word[j / 2];
  return (j % 2 ? word >> 16 : word & 0xffffU) >= draw.threshold;
}

/// Whether element `element` of the tensor's row `row` is kept. Draws all eight numbers of its group for one.
DUET_HOST_DEVICE inline bool dropout_keeps_element(const DropoutDraw& draw, std::int64_t row, std::int64_t element) {
  const auto within = static_cast<int>(element % (kDropoutNumbers * kDropoutLanes));
  const auto chunk = static_cast<std::uint32_t>(element / (kDropoutNumbers * kDropoutLanes));
  const std::uint32_t index = chunk * kDropoutLanes + static_cast<std::uint32_t>(within % kDropoutLanes);
  return dropout_keeps(draw, dropout_words(draw, row, index), within / kDropoutLanes);
}

}  // namespace duet::arithmetic
