// Convolutions by AMX of floats that are rounded to bf16, and the gradients of their images: of 16 images at a time,
// one pixel of 32 channels in a tile. What a window reads outside an image costs no products with zeros, and the
// weights are read once for all images, however small these are. Behind them the gradients of their weights.
#include <sys/types.h>

#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/amx_tile.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr std::int64_t kBlock = kTileRows, kTwo = kTileDepth;  // channels of a block, and of two
constexpr std::int64_t kTileSize = kPart;                      // words of a tile

std::int64_t groups_of(std::int64_t rows) { return (rows + kBlock - 1) / kBlock; }

/// One direction of a convolution and its scratch memory.
struct Pass {
  Pass(const BlockedConv& g, bool goes_back, std::int64_t row_count)
      : backward(goes_back),
        rows(row_count),
        taps(taps_of(g)),
        from_channels(backward ? g.out_channels : g.in_channels),
        from_pixels(backward ? pixels_out(g) : pixels_in(g)),
        to_channels(backward ? g.in_channels : g.out_channels),
        to_pixels(backward ? pixels_in(g) : pixels_out(g)),
        depths(from_channels / kTwo),
        pixel_words(depths * kTileSize),
        group_words(from_pixels * pixel_words),
        block_words(taps * pixel_words),
        line(g.in_channels * taps * kBlock) {}
  std::int64_t image_words() const { return groups_of(rows) * group_words; }
  std::int64_t weight_words() const { return to_channels / kBlock * block_words; }
  std::int64_t words() const { return image_words() + weight_words() + 2 * line + to_pixels * taps; }
  void place(void* memory) {
    images = static_cast<std::uint32_t*>(memory);
    weights = images + image_words();
    lines = reinterpret_cast<float*>(weights + weight_words());
    sources = reinterpret_cast<std::int32_t*>(lines + 2 * line);
  }

  bool backward;
  std::int64_t rows, taps, from_channels, from_pixels, to_channels, to_pixels;
  std::int64_t depths;                                 // tiles of a pixel or of a tap
  std::int64_t pixel_words, group_words, block_words;  // words: 16 images' pixel, 16 images, a block's weights
  std::int64_t line;                                   // floats of a block of outputs' weights
  std::uint32_t* images = nullptr;   // (row / 16, pixel, channel / 32, row, pair of channels c, c + 16)
  std::uint32_t* weights = nullptr;  // (to / 16, tap, from / 32, pair of channels c, c + 16, to)
  float* lines = nullptr;            // (block, input, tap, output)
  std::int32_t* sources = nullptr;
};

void tile_images(const Pass& pass, const float* from) {
  const std::int64_t pixels = pass.from_pixels;
  for (std::int64_t row = 0; row < pass.rows; ++row)
    for (std::int64_t depth = 0; depth < pass.depths; ++depth) {
      const float* const two = from + (row * pass.depths + depth) * kTwo * pixels;
      std::uint32_t* to = pass.images + row / kBlock * pass.group_words + depth * kTileSize + row % kBlock * kTileWords;
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel, to += pass.pixel_words)
        store(to, pair(load(two + pixel * kBlock), load(two + (pixels + pixel) * kBlock)));
    }
}

void tile_weights(const Pass& pass, const float* w) {
  const std::int64_t per_output = pass.line / kBlock, outputs = pass.backward ? pass.from_channels : pass.to_channels;
  const std::int64_t step = pass.backward ? kTwo : kBlock, inputs = per_output / pass.taps;
  for (std::int64_t out = 0; out < outputs; out += step) {
    for (std::int64_t i = 0; i < step / kBlock; ++i)
      avx512::table.block(w + (out + i * kBlock) * per_output, pass.lines + i * pass.line, per_output, kBlock);
    for (std::int64_t tap = 0; tap < pass.taps; ++tap) {
      const float* const first = pass.lines + tap * kBlock;
      const auto at = [&](std::int64_t input) { return load(first + input * pass.taps * kBlock); };
      if (!pass.backward) {
        std::uint32_t* const to = pass.weights + out / kBlock * pass.block_words + tap * pass.pixel_words;
        for (std::int64_t input = 0; input < inputs; ++input)
          if (input % kTwo < kBlock)
            store(to + input / kTwo * kTileSize + input % kTwo * kTileWords, pair(at(input), at(input + kBlock)));
        continue;
      }
      for (std::int64_t block = 0; block < inputs / kBlock; ++block) {
        Words rows[kTileRows];
        for (std::int64_t i = 0; i < kBlock; ++i)
          rows[i] = pair(at(block * kBlock + i), load(first + pass.line + (block * kBlock + i) * pass.taps * kBlock));
        store_turned(rows, pass.weights + block * pass.block_words + tap * pass.pixel_words + out / kTwo * kTileSize);
      }
    }
  }
}

/// One pixel of a group of images or, with `kSecond`, of two; 32 channels.
template <bool kSecond>
void convolve(const Pass& pass, std::int64_t group, std::int64_t block, std::int64_t pixel, float* to) {
  clear_four_tiles();
  for (std::int64_t tap = 0; tap < pass.taps; ++tap) {
    const std::int32_t source = pass.sources[pixel * pass.taps + tap];
    if (source < 0) continue;
    const std::uint32_t* a = pass.images + group * pass.group_words + source * pass.pixel_words;
    const std::uint32_t* b = pass.weights + block * pass.block_words + tap * pass.pixel_words;
    for (std::int64_t depth = 0; depth < pass.depths; ++depth, a += kTileSize, b += kTileSize) {
      load_tile<4>(a);
      load_tile<6>(b);
      load_tile<7>(b + pass.block_words);
      multiply_tiles<0, 4, 6>();
      multiply_tiles<1, 4, 7>();
      if constexpr (kSecond) {
        load_tile<5>(a + pass.group_words);
        multiply_tiles<2, 5, 6>();
        multiply_tiles<3, 5, 7>();
      }
    }
  }
  const std::int64_t image = pass.to_channels * pass.to_pixels, next = pass.to_pixels * kBlock;
  const auto pitch = static_cast<ssize_t>(image) * 4;
  to += group * kBlock * image + (block * pass.to_pixels + pixel) * kBlock;
  store_tile<0>(to, pitch);
  store_tile<1>(to + next, pitch);
  if constexpr (kSecond) {
    store_tile<2>(to + kBlock * image, pitch);
    store_tile<3>(to + kBlock * image + next, pitch);
  }
}

/// 32 channels of all images. A tile of fewer than 16 images takes less time.
void convolve_block(const Pass& pass, std::int64_t block, float* to) {
  std::int64_t group = 0;
  {
    const Tiles tiles(kTileRows);
    for (; (group + 2) * kBlock <= pass.rows; group += 2)
      for (std::int64_t pixel = 0; pixel < pass.to_pixels; ++pixel) convolve<true>(pass, group, block, pixel, to);
  }
  for (; group * kBlock < pass.rows; ++group) {
    const std::int64_t left = pass.rows - group * kBlock;
    const Tiles tiles(left < kBlock ? left : kBlock);
    for (std::int64_t pixel = 0; pixel < pass.to_pixels; ++pixel) convolve<false>(pass, group, block, pixel, to);
  }
}

/// sources (pixel, tap): the pixel of the input from which an output's pixel reads through a tap, or with `backward`
/// the pixel of the output that reads the input's one; -1 where there is none. Not part of the
/// loops that follow it, which need the registers.
[[gnu::noinline]] void find_sources(const BlockedConv& g, bool backward, std::int32_t* sources) {
  const std::int64_t taps = taps_of(g), count = (backward ? pixels_in(g) : pixels_out(g)) * taps;
  for (std::int64_t i = 0; i < count; ++i) sources[i] = -1;
  for (std::int64_t out = 0; out < pixels_out(g); ++out)
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t row = out / g.out_width * g.stride_h + tap / g.kernel_w - g.pad_h;
      const std::int64_t column = out % g.out_width * g.stride_w + tap % g.kernel_w - g.pad_w;
      if (row < 0 || row >= g.height || column < 0 || column >= g.width) continue;
      const std::int64_t in = row * g.width + column;
      sources[(backward ? in : out) * taps + tap] = static_cast<std::int32_t>(backward ? out : in);
    }
}

}  // namespace

std::int64_t tiled_conv_scratch_bytes(const BlockedConv& g, bool backward, std::int64_t rows) {
  return 4 * Pass(g, backward, rows).words();
}

void tiled_conv(const BlockedConv& g, bool backward, const float* from, const float* w, std::int64_t rows, float* to,
                void* scratch) {
  Pass pass(g, backward, rows);
  pass.place(scratch);
  find_sources(g, backward, pass.sources);
  tile_images(pass, from);
  tile_weights(pass, w);
  for (std::int64_t block = 0; block < pass.to_channels / kBlock; block += 2) convolve_block(pass, block, to);
}

// Weight gradients of convolutions by AMX, of floats that are rounded to bf16: sums over pixels and pairs of images,
// and then over the leaves, of 32 inputs at a time.

namespace {

constexpr std::int64_t kKept = std::int64_t{1} << 17;  // words of tiles that stay in the second cache

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
  std::int64_t most_tiles = 0;                                      // most tiles of any leaf for 16 inputs
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
