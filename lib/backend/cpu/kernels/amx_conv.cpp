// Convolutions by AMX of floats that are rounded to bf16, and the gradients of their images: of 16 images at a time,
// one pixel of 32 channels in a tile. What a window reads outside an image costs no products with zeros, and the
// weights are read once for all images, however small these are.
#include <sys/types.h>

#include <cstdint>

#include "lib/backend/cpu/kernels/amx.h"
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
  std::int64_t pixel_words, group_words, block_words;  // of 16 images' pixel, of 16 images, of a block's weights
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

}  // namespace

void find_sources(const BlockedConv& g, bool backward, std::int32_t* sources) {
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

}  // namespace duet::cpu::DUET_ISA
