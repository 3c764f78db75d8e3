// The table of this instruction set, and what the machine can do at most with it.
#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {

std::int64_t fma_peak(std::int64_t rounds, float* numbers) {
  // Two units with a latency of four or five cycles keep ten chains busy; with their operands they fit 16 registers.
  constexpr int kChains = 12;
  const Vec factor = broadcast(numbers[0]), term = broadcast(numbers[1]);
  Vec chains[kChains];  // start from different numbers: the compiler would compute equal chains once
  for (int i = 0; i < kChains; ++i) chains[i] = broadcast(numbers[2] + static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kChains; ++i) chains[i] = fma(chains[i], factor, term);
  Vec total = {};
  for (int i = 0; i < kChains; ++i) total = total + chains[i];
  numbers[2] = total[0];
  return rounds * kChains * kWidth * 2;
}

#define DUET_ENTRY(kernel) .kernel = kernel,
#define DUET_NONE(kernel) .kernel = nullptr,
constinit const Kernels table = {
    .name = kName, .channel_block = kWidth >= 8 ? kWidth : 8, DUET_KERNELS(DUET_ENTRY) DUET_TILED_KERNELS(DUET_NONE)};
#undef DUET_NONE
#undef DUET_ENTRY

}  // namespace duet::cpu::DUET_ISA
