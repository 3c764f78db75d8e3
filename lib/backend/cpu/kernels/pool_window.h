// The end of a fused convolution, shared by its kernels.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {

/// Maximum of a window's four outputs, its place, and relu. Ties go to the first; a NaN wins.
[[gnu::always_inline]] inline void pool_window(const Vec (&outputs)[4], float* y, std::uint8_t* index) {
  Vec best = outputs[0];
  Ints place = {};
  for (int i = 1; i < 4; ++i) {
    const Vec next = outputs[i];
    const Ints wins = (next > best) | (next != next);
    best = wins ? next : best;
    place = wins ? Ints{} + i : place;
  }
  const Ints stopped = best <= Vec{};
  store(y, stopped ? Vec{} : best);
  store_bytes(index, stopped ? Ints{} + kNoGradient : place);
}

}  // namespace duet::cpu::DUET_ISA
