// Weight gradients of convolutions by AMX, of floats that are rounded to bf16: sums over pixels and pairs of images,
// and then over the leaves, of 32 inputs at a time.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/amx.h"
#include "lib/backend/cpu/kernels/amx_tile.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr std::int64_t kBlock = kTileRows, kTwo = kTileDepth;  // channels of a block, and of two
constexpr std::int64_t kTileSize = kPart;                      // words of a tile
constexpr std::int64_t kKept = std::int64_t{1} << 17;          // words of tiles that stay in the second cache

/// Units of a leaf's image: pixels of a pair of rows. Behind them are zeros, one unit at least, up to whole tiles.
std::int64_t pairs_of(std::int64_t rows) { return (rows + 1) / 2; }
std::int64_t units_of(std::int64_t pixels, std::int64_t rows) {
  return (pixels * pairs_of(rows) / kBlock + 1) * kBlock;
}
std::int64_t tiles_of(std::int64_t pixels, std::int64_t rows) {
  return (pixels * pairs_of(rows) + kBlock - 1) / kBlock;
}

/// Scratch memory of a weight gradient, and how its loops run.
struct Gradient {
  Gradient(const BlockedConv& conv, const Leaves& all) : g(conv), leaves(all) {
    for (int leaf = 0; leaf < leaves.count; ++leaf) {
      const std::int64_t count = tiles_of(pixels_out(g), rows(leaf));
      if (count > most_tiles) most_tiles = count;
    }
    image = 2 * most_tiles * kTileSize;
    keeps = leaves.count * image <= kKept;
    pitch = (keeps ? 1 : taps * outputs) * 4 * kTileSize;
  }
  std::int64_t tile_words() const { return (keeps ? leaves.count : 1) * image; }
  std::int64_t line_words() const { return g.out_channels * kTwo * taps; }
  std::int64_t turned_words() const { return kBlock * kTwo * taps; }
  std::int64_t words() const {
    return tile_words() + leaves.count * pitch + line_words() + turned_words() + most_tiles * kBlock +
           pixels_out(g) * taps;
  }
  void place(void* memory) {
    tiles = static_cast<std::uint32_t*>(memory);
    sums = reinterpret_cast<float*>(tiles + tile_words());
    lines = sums + leaves.count * pitch;
    turned = lines + line_words();
    units = reinterpret_cast<std::int32_t*>(turned + turned_words());
    sources = units + most_tiles * kBlock;
  }
  /// Tiles of a leaf; and its words before those of the leaf, in `channels` channels of `pixels` pixels.
  std::uint32_t* tiles_for(int leaf) const { return tiles + (keeps ? leaf * image : 0); }
  std::int64_t words_before(int leaf, std::int64_t channels, std::int64_t pixels) const {
    std::int64_t before = 0;
    for (int i = 0; i < leaf; ++i) before += paired_words(channels, pixels, rows(i));
    return before;
  }
  std::int64_t rows(int leaf) const { return leaves.ranges[2 * leaf + 1] - leaves.ranges[2 * leaf]; }

  const BlockedConv& g;
  const Leaves& leaves;
  std::int64_t taps = taps_of(g), outputs = g.out_channels / kTwo;  // outputs: times 32
  std::int64_t most_tiles = 0;                                      // of a leaf and 16 inputs
  std::int64_t image = 0;                                           // words of a leaf's tiles
  bool keeps = false;              // the tiles of all leaves for one tap, else of one leaf for one tap
  std::int64_t pitch = 0;          // floats of a leaf's sums
  std::uint32_t* tiles = nullptr;  // (leaf if `keeps`, input / 16, tile, input, unit)
  float* sums = nullptr;    // (leaf, input / 16, output / 16, input, output), behind the leaf (tap, output / 32) unless
                            // `keeps`
  float* lines = nullptr;   // (output / 16, input, tap, output)
  float* turned = nullptr;  // (output, input, tap)
  std::int32_t* units = nullptr;
  std::int32_t* sources = nullptr;
};

/// The tiles of 32 inputs' pixels that a leaf's outputs read through `tap`.
void gather_tiles(const Gradient& s, const std::uint32_t* x, std::int64_t begin, int leaf, std::int64_t tap) {
  const std::int64_t rows = s.rows(leaf), block = units_of(pixels_in(s.g), rows) * kTileWords;
  x += s.words_before(leaf, s.g.in_channels, pixels_in(s.g)) + begin / kBlock * block;
  std::uint32_t* to = s.tiles_for(leaf);
  const std::int64_t pairs = pairs_of(rows), pixels = pixels_out(s.g), tiles = tiles_of(pixels, rows);
  const auto zeros = static_cast<std::int32_t>(pixels_in(s.g) * pairs);
  std::int32_t* unit = s.units;
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    const std::int32_t source = s.sources[pixel * s.taps + tap];
    for (std::int32_t i = 0; i < pairs; ++i)
      *unit++ = source < 0 ? zeros : source * static_cast<std::int32_t>(pairs) + i;
  }
  while (unit < s.units + tiles * kBlock) *unit++ = zeros;
  for (int half = 0; half < 2; ++half)
    for (std::int64_t tile = 0; tile < tiles; ++tile, to += kTileSize) {
      Words turned[kTileRows];
      for (std::int64_t i = 0; i < kBlock; ++i)
        std::memcpy(&turned[i], x + half * block + s.units[tile * kBlock + i] * kTileWords, sizeof turned[i]);
      store_turned(turned, to);
    }
}

/// sums (input / 16, output / 16, input, output) = the products of a leaf's gathered tiles and outputs `output` * 32
/// and up.
void multiply_leaf(const Gradient& s, const std::uint32_t* dy, int leaf, std::int64_t output, float* sums) {
  const std::int64_t pixels = pixels_out(s.g), rows = s.rows(leaf), tiles = tiles_of(pixels, rows);
  const std::int64_t dy_pitch = units_of(pixels, rows) * kTileWords;
  dy += s.words_before(leaf, s.g.out_channels, pixels) + 2 * output * dy_pitch;
  const std::uint32_t *const x = s.tiles_for(leaf), *const second = x + tiles * kTileSize;
  clear_four_tiles();
  for (std::int64_t at = 0; at < tiles * kTileSize; at += kTileSize) {
    load_tile<4>(x + at);
    load_tile<5>(second + at);
    load_tile<6>(dy + at);
    load_tile<7>(dy + dy_pitch + at);
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 4, 7>();
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
  store_tile<0>(sums);
  store_tile<1>(sums + kTileSize);
  store_tile<2>(sums + 2 * kTileSize);
  store_tile<3>(sums + 3 * kTileSize);
}

/// Sums over the leaves, in the first one's place.
void sum_leaves(const Gradient& s) {
  for (int i = 0; i < s.leaves.addition_count; ++i) {
    float* const to = s.sums + s.leaves.additions[2 * i] * s.pitch;
    avx512::table.add(to, s.sums + s.leaves.additions[2 * i + 1] * s.pitch, to, s.pitch);
  }
}

/// Brings the sums of outputs `output` * 32 and up to `lines`.
void store_lines(const Gradient& s, const float* sums, std::int64_t output, std::int64_t tap) {
  for (std::int64_t tile = 0; tile < 4; ++tile, sums += kTileSize) {
    float* const to = s.lines + (((2 * output + tile % 2) * kTwo + tile / 2 * kBlock) * s.taps + tap) * kBlock;
    for (std::int64_t row = 0; row < kBlock; ++row) {
      const Vec sum = load(sums + row * kBlock);
      store(to + row * s.taps * kBlock, s.leaves.add_zero ? sum + broadcast(0) : sum);
    }
  }
}

}  // namespace

std::int64_t paired_words(std::int64_t channels, std::int64_t pixels, std::int64_t rows) {
  return channels / kBlock * units_of(pixels, rows) * kTileWords;
}

void pair_images(const float* x, std::int64_t channels, std::int64_t pixels, std::int64_t rows, std::uint32_t* to) {
  const std::int64_t pairs = pairs_of(rows), units = units_of(pixels, rows), image = channels * pixels;
  for (std::int64_t block = 0; block < channels / kBlock; ++block, to += units * kTileWords) {
    for (std::int64_t row = 0; row < rows; row += 2) {
      const float* const first = x + row * image + block * kBlock * pixels;
      const float* const second = row + 1 < rows ? first + image : nullptr;
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
        store(to + (pixel * pairs + row / 2) * kTileWords,
              pair(load(first + pixel * kBlock), second != nullptr ? load(second + pixel * kBlock) : Vec{}));
    }
    for (std::int64_t unit = pixels * pairs; unit < units; ++unit) store(to + unit * kTileWords, Words{});
  }
}

std::int64_t tiled_weights_scratch_bytes(const BlockedConv& g, const Leaves& leaves) {
  return 4 * Gradient(g, leaves).words();
}

void tiled_backward_weights(const BlockedConv& g, const std::uint32_t* x, const std::uint32_t* dy, const Leaves& leaves,
                            std::int64_t begin, float* dw, void* scratch) {
  Gradient s(g, leaves);
  s.place(scratch);
  find_sources(g, false, s.sources);
  const Tiles shape(kTileRows);
  for (std::int64_t tap = 0; s.keeps && tap < s.taps; ++tap) {
    for (int leaf = 0; leaf < leaves.count; ++leaf) gather_tiles(s, x, begin, leaf, tap);
    for (std::int64_t output = 0; output < s.outputs; ++output) {
      for (int leaf = 0; leaf < leaves.count; ++leaf) multiply_leaf(s, dy, leaf, output, s.sums + leaf * s.pitch);
      sum_leaves(s);
      store_lines(s, s.sums, output, tap);
    }
  }
  const auto place = [&](std::int64_t tap, std::int64_t output) {
    return s.sums + (tap * s.outputs + output) * 4 * kTileSize;
  };
  for (int leaf = 0; !s.keeps && leaf < leaves.count; ++leaf)
    for (std::int64_t tap = 0; tap < s.taps; ++tap) {
      gather_tiles(s, x, begin, leaf, tap);
      for (std::int64_t output = 0; output < s.outputs; ++output)
        multiply_leaf(s, dy, leaf, output, place(tap, output) + leaf * s.pitch);
    }
  if (!s.keeps) sum_leaves(s);
  for (std::int64_t tap = 0; !s.keeps && tap < s.taps; ++tap)
    for (std::int64_t output = 0; output < s.outputs; ++output) store_lines(s, place(tap, output), output, tap);
  const std::int64_t line = kTwo * s.taps;
  for (std::int64_t block = 0; block < g.out_channels / kBlock; ++block) {
    avx512::table.unblock(s.lines + block * line * kBlock, s.turned, line, kBlock);
    for (std::int64_t i = 0; i < kBlock; ++i)
      std::memcpy(dw + ((block * kBlock + i) * g.in_channels + begin) * s.taps, s.turned + i * line,
                  static_cast<std::size_t>(line) * sizeof(float));
  }
}

}  // namespace duet::cpu::DUET_ISA
