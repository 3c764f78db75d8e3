// winograd.cpp with its products by AMX. A tile of the processor, called matrix here, holds rows of pixel tiles.
#include <cstdint>

#include "lib/backend/cpu/kernels/amx_tile.h"
#include "lib/backend/cpu/kernels/winograd_tile.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kGroups = 4;                 // groups of pixel tiles for which weights are loaded once
constexpr std::int64_t kFewestTiles = 32;  // with fewer, matrices are so empty that multiplying floats is faster
constexpr std::int64_t kApart = 16;        // keeps groups from lying a multiple of a page apart

bool takes(const PooledConv& g) {
  return g.in_channels % kTileDepth == 0 && g.height / 2 * (g.width / 2) >= kFewestTiles;
}

/// Pixel tiles are computed in groups of equally many; the last ones overlap where the number does not divide. Sizes in
/// words of 32 bits.
struct Sizes {
  explicit Sizes(const PooledConv& g)
      : tiles(g.height / 2 * (g.width / 2)),
        passes((tiles + kGroups * kTileRows - 1) / (kGroups * kTileRows)),
        rows((tiles + passes * kGroups - 1) / (passes * kGroups)),
        depths(g.in_channels / kTileDepth),
        panels(g.out_channels / kTileWords),
        part(rows * kTileWords),
        point(depths * kParts * part),
        group(kPoints * point + kApart),
        total_group(kPoints * part + kApart),
        panel(kGroups * total_group) {}
  /// The first tile of group `i` of all.
  std::int64_t first(std::int64_t i) const { return (tiles - rows) * i / (passes * kGroups - 1); }

  std::int64_t tiles, passes, rows, depths, panels;
  std::int64_t part, point, group;  // strides in the transformed pixels: (group, point, depth, part, row)
  std::int64_t total_group, panel;  // strides in the products: (panel, group, point, row)
};

/// Pairs are channels c and c + 16: so they lie in two blocks.
void split_group(const PooledConv& g, const Sizes& s, const float* x, std::int64_t first, std::uint32_t* to) {
  const std::int64_t width = g.width / 2, line = (g.width + 2) * kBlock, plane = (g.height + 2) * line;
  for (std::int64_t depth = 0; depth < s.depths; ++depth, to += kParts * s.part) {
    const float* row = x + 2 * depth * plane + 2 * (first / width) * line;
    std::int64_t column = first % width;
    for (std::int64_t t = 0; t < s.rows; ++t) {
      Vec lower[kPoints], upper[kPoints];
      transform_pixels(row + 2 * column * kBlock, line, [&](int i, Vec point) { lower[i] = point; });
      transform_pixels(row + plane + 2 * column * kBlock, line, [&](int i, Vec point) { upper[i] = point; });
      for (int i = 0; i < kPoints; ++i) split(lower[i], upper[i], to + i * s.point + t * kTileWords, s.part);
      if (++column == width) {
        column = 0;
        row += 2 * line;
      }
    }
  }
}

/// Adds the products of all groups at one depth; with kStore, the last one, stores the totals, each while the next is
/// computed.
template <bool kStore>
[[gnu::always_inline]] inline void multiply_depth(const Sizes& s, const std::uint32_t* pixels,
                                                  const std::uint32_t* weights, float* totals) {
  constexpr int kA = 4, kB = 5;
  load_parts<kB>(weights);
  multiply_parts<0, 0, kA, kB>(pixels, s.part);
  multiply_parts<1, 1, kA, kB>(pixels + s.group, s.part);
  if (kStore) store_tile<0>(totals);
  multiply_parts<2, 2, kA, kB>(pixels + 2 * s.group, s.part);
  if (kStore) store_tile<1>(totals + s.total_group);
  multiply_parts<3, 3, kA, kB>(pixels + 3 * s.group, s.part);
  if (kStore) store_tile<2>(totals + 2 * s.total_group);
  if (kStore) store_tile<3>(totals + 3 * s.total_group);
}

/// The products of all groups at one point with one panel's weights.
void multiply_groups(const Sizes& s, const std::uint32_t* pixels, const std::uint32_t* weights, float* totals) {
  clear_tile<0>();
  clear_tile<1>();
  clear_tile<2>();
  clear_tile<3>();
  for (std::int64_t depth = 1; depth < s.depths; ++depth, pixels += kParts * s.part, weights += kParts * kPart)
    multiply_depth<false>(s, pixels, weights, totals);
  multiply_depth<true>(s, pixels, weights, totals);
}

}  // namespace

std::int64_t winograd_weight_floats(const PooledConv& g) {
  return takes(g) ? kPoints * g.out_channels * g.in_channels / 2 * kParts : avx512::table.winograd_weight_floats(g);
}

std::int64_t winograd_scratch_floats(const PooledConv& g) {
  const Sizes s(g);
  return takes(g) ? kGroups * s.group + s.panels * s.panel : avx512::table.winograd_scratch_floats(g);
}

// Order: (point, panel of output channels, depth, part, pair of input channels, output channel).
void winograd_weights(const PooledConv& g, const float* w, float* u) {
  if (!takes(g)) return avx512::table.winograd_weights(g, w, u);
  const Sizes s(g);
  auto* const to = reinterpret_cast<std::uint32_t*>(u);
  for (std::int64_t panel = 0; panel < s.panels; ++panel)
    for (std::int64_t depth = 0; depth < s.depths; ++depth)
      for (std::int64_t pair = 0; pair < kTileWords; ++pair) {
        float points[2][kPoints * kWidth];
        for (int half = 0; half < 2; ++half) {
          const std::int64_t c = depth * kTileDepth + half * kTileWords + pair;
          float taps[9][kWidth];
          for (int lane = 0; lane < kWidth; ++lane)
            for (int t = 0; t < 9; ++t) taps[t][lane] = w[((panel * kWidth + lane) * g.in_channels + c) * 9 + t];
          transform_filters(taps, points[half], kWidth);
        }
        for (int i = 0; i < kPoints; ++i)
          split(load(points[0] + i * kWidth), load(points[1] + i * kWidth),
                to + ((i * s.panels + panel) * s.depths + depth) * kParts * kPart + pair * kTileWords, kPart);
      }
}

void winograd_forward(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                      std::uint8_t* index, const float* next, float* scratch) {
  if (!takes(g)) return avx512::table.winograd_forward(g, u, bias, x, y, index, next, scratch);
  const Sizes s(g);
  const Tiles tiles(s.rows);
  auto* const pixels = reinterpret_cast<std::uint32_t*>(scratch);
  float* const totals = scratch + kGroups * s.group;
  Ahead ahead(next, g.in_channels * g.height * g.width * 4, s.passes * kPoints * s.panels);
  for (std::int64_t pass = 0; pass < s.passes; ++pass) {
    for (int i = 0; i < kGroups; ++i) split_group(g, s, x, s.first(pass * kGroups + i), pixels + i * s.group);
    const auto* weights = reinterpret_cast<const std::uint32_t*>(u);
    for (int i = 0; i < kPoints; ++i)
      for (std::int64_t panel = 0; panel < s.panels; ++panel, weights += s.depths * kParts * kPart) {
        ahead.step();
        multiply_groups(s, pixels + i * s.point, weights, totals + panel * s.panel + i * s.part);
      }
    for (std::int64_t panel = 0; panel < s.panels; ++panel)
      for (int i = 0; i < kGroups; ++i)
        for (std::int64_t t = 0; t < s.rows; ++t) {
          const std::int64_t at = (panel * s.tiles + s.first(pass * kGroups + i) + t) * kBlock;
          pool_tile(totals + panel * s.panel + i * s.total_group + t * kTileWords, s.part, load(bias + panel * kBlock),
                    y + at, index + at);
        }
  }
}

}  // namespace duet::cpu::DUET_ISA
