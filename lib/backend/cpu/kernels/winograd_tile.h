// Winograd's F(2x2, 3x3): the transforms of filters, of a tile of pixels, and of its products. Shared by its kernels.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {

constexpr int kPoints = 16;                       // products of a tile and channel
constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channels of a block of the image

/// The 4x4 products of kWidth filters' taps: G w G^T.
inline void transform_filters(const float (&taps)[9][kWidth], float* u, std::int64_t pitch) {
  const Vec half = broadcast(0.5f);
  Vec rows[4][3];
  for (int s = 0; s < 3; ++s) {
    const Vec top = load(taps[s]), middle = load(taps[3 + s]), bottom = load(taps[6 + s]);
    rows[0][s] = top;
    rows[1][s] = half * (top + bottom + middle);
    rows[2][s] = half * (top + bottom - middle);
    rows[3][s] = bottom;
  }
  for (int r = 0; r < 4; ++r) {
    const Vec outer = rows[r][0] + rows[r][2];
    store(u + (4 * r) * pitch, rows[r][0]);
    store(u + (4 * r + 1) * pitch, half * (outer + rows[r][1]));
    store(u + (4 * r + 2) * pitch, half * (outer - rows[r][1]));
    store(u + (4 * r + 3) * pitch, rows[r][2]);
  }
}

/// B^T d B of the 4x4 pixels at `corner`, kWidth channels: put(i, point) for each point.
template <class Put>
[[gnu::always_inline]] inline void transform_pixels(const float* corner, std::int64_t line, Put&& put) {
  Vec rows[4][4];
  for (int s = 0; s < 4; ++s) {
    Vec d[4];
    for (int r = 0; r < 4; ++r) d[r] = load(corner + r * line + s * kBlock);
    rows[0][s] = d[0] - d[2];
    rows[1][s] = d[1] + d[2];
    rows[2][s] = d[2] - d[1];
    rows[3][s] = d[1] - d[3];
  }
  for (int r = 0; r < 4; ++r) {
    put(4 * r, rows[r][0] - rows[r][2]);
    put(4 * r + 1, rows[r][1] + rows[r][2]);
    put(4 * r + 2, rows[r][2] - rows[r][1]);
    put(4 * r + 3, rows[r][1] - rows[r][3]);
  }
}

/// A^T m A, the four outputs of a tile, and from there to y and index.
[[gnu::always_inline]] inline void pool_tile(const float* m, std::int64_t pitch, Vec bias, float* y,
                                             std::uint8_t* index) {
  Vec rows[2][4], outputs[4];
  for (int s = 0; s < 4; ++s) {
    Vec p[4];
    for (int r = 0; r < 4; ++r) p[r] = load(m + (4 * r + s) * pitch);
    if (s == 1) p[1] = p[1] + bias;  // point (1, 1) enters each of the four outputs once
    rows[0][s] = p[0] + (p[1] + p[2]);
    rows[1][s] = (p[1] - p[2]) - p[3];
  }
  for (int r = 0; r < 2; ++r) {
    outputs[2 * r] = rows[r][0] + (rows[r][1] + rows[r][2]);
    outputs[2 * r + 1] = (rows[r][1] - rows[r][2]) - rows[r][3];
  }
  pool_window(outputs, y, index);
}

}  // namespace duet::cpu::DUET_ISA
