// Forward of a 3x3 convolution, bias, 2x2 max-pool and relu in one pass, by Winograd's F(2x2, 3x3): four products a
// pixel and channel instead of nine (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016). A tile
// of 2x2 outputs is one window of the pool, so the convolution's outputs never leave the registers.
//
// Values that are not finite spread over their tile: the transforms only add and subtract, so they never become finite.
#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"
#include "lib/backend/cpu/kernels/winograd_tile.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kMostTiles = kRegisters == 32 ? 13 : 6;  // accumulators of kPanelVecs vectors that fit the registers
constexpr int kPanelVecs = 2;
constexpr int kPanel = kPanelVecs * kWidth;  // output channels computed together
constexpr std::int64_t kApart = 16;          // keeps points from lying a multiple of a page apart

/// Output channels of the panel that begins at channel k: the last may be narrower.
std::int64_t panel_width(const PooledConv& g, std::int64_t k) {
  return g.out_channels - k < kPanel ? g.out_channels - k : kPanel;
}

/// Floats between the points of a group of tiles.
std::int64_t point_pitch(int tiles, std::int64_t channels) { return tiles * channels + kApart; }

/// m (kTiles, kVecs vectors) = v (kTiles, channels) * u (channels, kVecs vectors). Each element has one accumulator
/// that walks the channels in order, so it does not depend on the neighbouring tiles.
template <int kTiles, int kVecs>
void multiply(const float* v, const float* u, float* m, std::int64_t channels) {
  Vec total[kTiles][kVecs] = {};
  for (std::int64_t c = 0; c < channels; ++c) {
    Vec weights[kVecs];
    for (int j = 0; j < kVecs; ++j) weights[j] = load(u + (c * kVecs + j) * kWidth);
    for (int t = 0; t < kTiles; ++t) {
      const Vec pixel = broadcast(v[t * channels + c]);
      for (int j = 0; j < kVecs; ++j) total[t][j] = fma(pixel, weights[j], total[t][j]);
    }
  }
  for (int t = 0; t < kTiles; ++t)
    for (int j = 0; j < kVecs; ++j) store(m + (t * kVecs + j) * kWidth, total[t][j]);
}

/// Tiles [first, first + kTiles) of one image, all output channels.
template <int kTiles>
void forward_tiles(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                   std::uint8_t* index, std::int64_t first, Ahead& next, float* scratch) {
  const std::int64_t width = g.width / 2, pixels = g.height / 2 * width, line = (g.width + 2) * kBlock;
  const std::int64_t v_pitch = point_pitch(kTiles, g.in_channels), m_pitch = point_pitch(kTiles, kPanel);
  float* const v = scratch;
  float* const m = scratch + kPoints * v_pitch;
  for (std::int64_t c = 0; c < g.in_channels; c += kWidth) {
    const float* row = x + (c / kBlock * (g.height + 2) + 2 * (first / width)) * line + c % kBlock;
    std::int64_t column = first % width;
    for (int t = 0; t < kTiles; ++t) {
      float* const to = v + t * g.in_channels + c;
      transform_pixels(row + 2 * column * kBlock, line, [=](int i, Vec point) { store(to + i * v_pitch, point); });
      if (++column == width) {
        column = 0;
        row += 2 * line;
      }
    }
  }
  for (std::int64_t k = 0; k < g.out_channels; k += kPanel) {
    const std::int64_t channels = panel_width(g, k);
    const float* const weights = u + kPoints * k * g.in_channels;
    for (int i = 0; i < kPoints; ++i) {
      next.step();
      const float* const from = weights + i * g.in_channels * channels;
      if (channels == kPanel) {
        multiply<kTiles, kPanelVecs>(v + i * v_pitch, from, m + i * m_pitch, g.in_channels);
      } else {
        multiply<kTiles, 1>(v + i * v_pitch, from, m + i * m_pitch, g.in_channels);
      }
    }
    for (std::int64_t j = 0; j < channels; j += kWidth)
      for (int t = 0; t < kTiles; ++t) {
        const std::int64_t at = ((k + j) / kBlock * pixels + first + t) * kBlock + (k + j) % kBlock;
        pool_tile(m + t * channels + j, m_pitch, load(bias + k + j), y + at, index + at);
      }
  }
}

/// forward_tiles<tiles>.
template <int kTiles>
void forward_group(int tiles, const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                   std::uint8_t* index, std::int64_t first, Ahead& next, float* scratch) {
  if (tiles == kTiles) return forward_tiles<kTiles>(g, u, bias, x, y, index, first, next, scratch);
  if constexpr (kTiles > 1) forward_group<kTiles - 1>(tiles, g, u, bias, x, y, index, first, next, scratch);
}

}  // namespace

std::int64_t winograd_weight_floats(const PooledConv& g) { return kPoints * g.out_channels * g.in_channels; }

std::int64_t winograd_scratch_floats(const PooledConv& g) {
  return kPoints * (point_pitch(kMostTiles, g.in_channels) + point_pitch(kMostTiles, kPanel));
}

// Order: (panel of output channels, point, input channel, output channel of the panel).
void winograd_weights(const PooledConv& g, const float* w, float* u) {
  for (std::int64_t k = 0; k < g.out_channels; k += kPanel) {
    const std::int64_t channels = panel_width(g, k);
    for (std::int64_t j = 0; j < channels; j += kWidth)
      for (std::int64_t c = 0; c < g.in_channels; ++c) {
        float taps[9][kWidth];
        for (int lane = 0; lane < kWidth; ++lane)
          for (int t = 0; t < 9; ++t) taps[t][lane] = w[((k + j + lane) * g.in_channels + c) * 9 + t];
        transform_filters(taps, u + kPoints * k * g.in_channels + c * channels + j, g.in_channels * channels);
      }
  }
}

void winograd_forward(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                      std::uint8_t* index, const float* next, float* scratch) {
  const std::int64_t tiles = g.height / 2 * (g.width / 2), groups = (tiles + kMostTiles - 1) / kMostTiles;
  const std::int64_t panels = (g.out_channels + kPanel - 1) / kPanel;
  Ahead ahead(next, g.in_channels * g.height * g.width * 4, groups * panels * kPoints);
  for (std::int64_t i = 0; i < groups; ++i) {
    const std::int64_t first = tiles * i / groups, count = tiles * (i + 1) / groups - first;
    forward_group<kMostTiles>(static_cast<int>(count), g, u, bias, x, y, index, first, ahead, scratch);
  }
}

}  // namespace duet::cpu::DUET_ISA
