#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kLanes = 16;               // Philox calls made side by side
constexpr int kChunk = kLanes * 8;       // decisions that they give: eight 16-bit numbers each

struct State {
  std::uint32_t word[4][kLanes];
};

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) on all lanes.
void philox(State& x, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    State next;
    for (int i = 0; i < kLanes; ++i) {
      const std::uint64_t a = static_cast<std::uint64_t>(x.word[0][i]) * 0xD2511F53u;
      const std::uint64_t b = static_cast<std::uint64_t>(x.word[2][i]) * 0xCD9E8D57u;
      next.word[0][i] = static_cast<std::uint32_t>(b >> 32) ^ x.word[1][i] ^ key0;
      next.word[1][i] = static_cast<std::uint32_t>(b);
      next.word[2][i] = static_cast<std::uint32_t>(a >> 32) ^ x.word[3][i] ^ key1;
      next.word[3][i] = static_cast<std::uint32_t>(a);
    }
    x = next;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace

// Decision e of a row: chunk e / 128; in it, lane e % 16 of the eight numbers' j-th, j = (e % 128) / 16: the low half
// of word j / 2 for even j, else the high half. Counter: (16 * chunk + lane, row, step, layer); key: the seed.
void dropout_mask(std::uint8_t* mask, std::int64_t n, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                  std::uint32_t layer, std::uint32_t threshold) {
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    State x;
    for (int i = 0; i < kLanes; ++i) {
      x.word[0][i] = static_cast<std::uint32_t>(begin / kChunk * kLanes + i);
      x.word[1][i] = static_cast<std::uint32_t>(row);
      x.word[2][i] = static_cast<std::uint32_t>(step);
      x.word[3][i] = layer;
    }
    philox(x, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    std::uint8_t keep[kChunk];
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < kLanes; ++i)
        keep[j * kLanes + i] = (j % 2 ? x.word[j / 2][i] >> 16 : x.word[j / 2][i] & 0xFFFFu) >= threshold;
    const std::int64_t take = n - begin < kChunk ? n - begin : kChunk;
    for (std::int64_t i = 0; i < take; ++i) mask[begin + i] = keep[i];
  }
}

}  // namespace duet::cpu::DUET_ISA
