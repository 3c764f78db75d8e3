#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kLanes = 16;          // Philox calls made in parallel
constexpr int kChunk = kLanes * 8;  // decisions that they give: eight 16-bit numbers each

typedef std::uint32_t Words __attribute__((vector_size(kWidth * 4)));

/// Products of the 32-bit lanes with a constant: high and low halves.
[[gnu::always_inline]] inline void multiply(Words x, std::uint32_t factor, Words& high, Words& low) {
  constexpr std::uint64_t kLow = 0xFFFFFFFFu;
  const Wide f = Wide{} + factor;
  const Wide even = multiply_low((Wide)x, f), odd = multiply_low((Wide)x >> 32, f);
  high = (Words)(even >> 32 | (odd & ~kLow));
  low = (Words)((even & kLow) | odd << 32);
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) on all lanes.
[[gnu::always_inline]] inline void philox(Words (&x)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    Words high_a, low_a, high_b, low_b;
    multiply(x[0], 0xD2511F53u, high_a, low_a);
    multiply(x[2], 0xCD9E8D57u, high_b, low_b);
    x[0] = high_b ^ x[1] ^ key0;
    x[1] = low_b;
    x[2] = high_a ^ x[3] ^ key1;
    x[3] = low_a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// The 128 decisions of one chunk.
void chunk_mask(std::uint8_t* keep, std::uint32_t chunk, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                std::uint32_t layer, std::uint32_t threshold) {
  std::uint32_t lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = chunk * kLanes + static_cast<std::uint32_t>(i);
  for (int begin = 0; begin < kLanes; begin += kWidth) {
    Words x[4] = {Words{}, Words{} + static_cast<std::uint32_t>(row), Words{} + static_cast<std::uint32_t>(step),
                  Words{} + layer};
    std::memcpy(&x[0], lane + begin, sizeof x[0]);
    philox(x, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    for (int j = 0; j < 8; ++j) {
      const Words number = j % 2 ? x[j / 2] >> 16 : x[j / 2] & 0xFFFFu;
      typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
      const Words one = number >= threshold ? Words{} + 1u : Words{};
      const Bytes bytes = __builtin_convertvector(one, Bytes);
      std::memcpy(keep + j * kLanes + begin, &bytes, sizeof bytes);
    }
  }
}

}  // namespace

// Decision e of a row: chunk e / 128; in it, lane e % 16 of the eight numbers' j-th, j = (e % 128) / 16: the low half
// of word j / 2 for even j, else the high half. Counter: (16 * chunk + lane, row, step, layer); key: the seed.
void dropout_mask(std::uint8_t* mask, std::int64_t n, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                  std::uint32_t layer, std::uint32_t threshold) {
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const auto chunk = static_cast<std::uint32_t>(begin / kChunk);
    if (begin + kChunk <= n) {
      chunk_mask(mask + begin, chunk, seed, step, row, layer, threshold);
      continue;
    }
    std::uint8_t keep[kChunk];
    chunk_mask(keep, chunk, seed, step, row, layer, threshold);
    for (std::int64_t i = begin; i < n; ++i) mask[i] = keep[i - begin];
  }
}

}  // namespace duet::cpu::DUET_ISA
