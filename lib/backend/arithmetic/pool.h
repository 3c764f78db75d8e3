// What decides a maximum, and where its gradient goes.
#pragma once

#include <cstdint>

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// Place of a pooled element through which no gradient passes: its maximum was not positive, or it was dropped.
inline constexpr std::uint8_t kNoGradient = 255;

/// Whether the next value of a window, in row-major order, takes the place of the best so far: ties stay with the
/// first, and a NaN wins, as in PyTorch. T: float, or a vector of them.
template <class T>
DUET_HOST_DEVICE inline auto pool_wins(const T& next, const T& best) {
  return next > best || next != next;
}

/// Whether relu stops a value, and the gradient behind it; a NaN stays a NaN and passes its gradient on, as in PyTorch.
DUET_HOST_DEVICE inline bool relu_stops(float value) { return value <= 0; }

}  // namespace duet::arithmetic
