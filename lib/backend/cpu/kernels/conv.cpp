// Convolutions of images with few pixels or few channels.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kBlock = kWidth >= 8 ? kWidth : 8;  // channel_block

// The weight gradient of convolutions of small images with many channels: of a pair of blocks of channels it is
// computed for all rows and summed over the leaves while the cache holds it. The gradient is the largest tensor there.

constexpr int kBlockVecs = kBlock / kWidth;
constexpr std::int64_t kTile = kBlock * kBlock;

/// Outputs [begin, end) of one dimension that read inside the image through tap `tap`.
struct Inside {
  Inside(std::int64_t size, std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t tap)
      : begin(tap < pad ? (pad - tap + stride - 1) / stride : 0),
        end(size + pad - tap <= 0 ? 0 : (size + pad - tap - 1) / stride + 1) {
    if (end > out) end = out;
  }
  std::int64_t begin, end;
};

/// to (input, output) = products of one block of inputs and one of outputs, through tap (r, t), summed over rows.
void sum_tap(const BlockedConv& g, const float* x, const float* dy, std::int64_t begin, std::int64_t end,
             std::int64_t r, std::int64_t t, float* to) {
  const Inside rows(g.height, g.out_height, g.stride_h, g.pad_h, r);
  const Inside columns(g.width, g.out_width, g.stride_w, g.pad_w, t);
  const std::int64_t step = g.stride_w * kBlock;
  Vec sums[kBlock][kBlockVecs] = {};
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t p = rows.begin; p < rows.end; ++p) {
      const float* from =
          x + n * g.in_channels * g.height * g.width +
          ((p * g.stride_h + r - g.pad_h) * g.width + columns.begin * g.stride_w + t - g.pad_w) * kBlock;
      const float* d =
          dy + n * g.out_channels * g.out_height * g.out_width + (p * g.out_width + columns.begin) * kBlock;
      for (std::int64_t q = columns.begin; q < columns.end; ++q, from += step, d += kBlock)
        unroll<kBlockVecs>([&](int v) {
          const Vec gradient = load(d + v * kWidth);
          unroll<kBlock>([&](int i) { sums[i][v] = fma(broadcast(from[i]), gradient, sums[i][v]); });
        });
    }
  unroll<kBlock>([&](int i) {
    for (int v = 0; v < kBlockVecs; ++v) store(to + i * kBlock + v * kWidth, sums[i][v]);
  });
}

}  // namespace

std::int64_t small_weights_scratch_floats(const BlockedConv& g, const Leaves& leaves) {
  return leaves.count * g.kernel_h * g.kernel_w * kTile;
}

void small_backward_weights(const BlockedConv& g, const float* x, const float* dy, const Leaves& leaves,
                            std::int64_t out_block, float* dw, float* scratch) {
  const std::int64_t taps = g.kernel_h * g.kernel_w, tiles = taps * kTile;
  const float* const gradients = dy + out_block * kBlock * g.out_height * g.out_width;
  for (std::int64_t in_block = 0; in_block < g.in_channels / kBlock; ++in_block) {
    const float* const images = x + in_block * kBlock * g.height * g.width;
    for (int leaf = 0; leaf < leaves.count; ++leaf)
      for (std::int64_t tap = 0; tap < taps; ++tap)
        sum_tap(g, images, gradients, leaves.ranges[2 * leaf], leaves.ranges[2 * leaf + 1], tap / g.kernel_w,
                tap % g.kernel_w, scratch + leaf * tiles + tap * kTile);
    for (int i = 0; i < leaves.addition_count; ++i) {
      float* const to = scratch + leaves.additions[2 * i] * tiles;
      add(to, scratch + leaves.additions[2 * i + 1] * tiles, to, tiles);
    }
    for (std::int64_t out = 0; out < kBlock; ++out) {
      float* to = dw + ((out_block * kBlock + out) * g.in_channels + in_block * kBlock) * taps;
      for (std::int64_t in = 0; in < kBlock; ++in)
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const float sum = scratch[(tap * kBlock + in) * kBlock + out];
          *to++ = leaves.add_zero ? sum + 0.0f : sum;
        }
    }
  }
}

// The weight gradient of a convolution that reads a plain image of few channels: the first of a network. oneDNN 2.6
// has no vector code for one input channel where outputs lie in blocks of 8.

namespace {

constexpr std::int64_t kTapsAtOnce = 9;  // accumulators that fit the registers

/// dw of kTaps taps from `tap` on, for the kWidth output channels at dy: the sum over all rows and pixels.
template <int kTaps>
void sum_taps(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, std::int64_t channel,
              std::int64_t tap, float* lanes) {
  Vec total[kTaps] = {};
  std::int64_t offset[kTaps];
  for (int t = 0; t < kTaps; ++t)
    offset[t] = (tap + t) / g.kernel_w * g.width + (tap + t) % g.kernel_w + channel * g.height * g.width;
  const std::int64_t pixels = g.out_height * g.out_width;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const image = x + row * g.in_channels * g.height * g.width;
    const float* const gradient = dy + row * g.out_channels * pixels;
    for (std::int64_t p = 0; p < g.out_height; ++p) {
      for (std::int64_t q = 0; q < g.out_width; ++q) {
        const Vec value = load(gradient + (p * g.out_width + q) * kBlock);
        const float* const corner = image + p * g.stride_h * g.width + q * g.stride_w;
        for (int t = 0; t < kTaps; ++t) total[t] = fma(value, broadcast(corner[offset[t]]), total[t]);
      }
    }
  }
  for (int t = 0; t < kTaps; ++t) store(lanes + t * kWidth, total[t]);
}

/// db of kWidth output channels.
void sum_pixels(const PlainConv& g, const float* dy, std::int64_t rows, float* db) {
  Vec total = {};
  const std::int64_t pixels = g.out_height * g.out_width;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < pixels; ++i) total = total + load(dy + (row * g.out_channels * pixels) + i * kBlock);
  store(db, total);
}

}  // namespace

void plain_backward_weights(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, float* dw,
                            float* db) {
  const std::int64_t taps = g.kernel_h * g.kernel_w, pixels = g.out_height * g.out_width;
  for (std::int64_t k = 0; k < g.out_channels; k += kWidth) {
    const float* const from = dy + k / kBlock * pixels * kBlock + k % kBlock;
    sum_pixels(g, from, rows, db + k);
    for (std::int64_t c = 0; c < g.in_channels; ++c) {
      for (std::int64_t tap = 0; tap < taps;) {
        float lanes[kTapsAtOnce * kWidth];
        const std::int64_t count = taps - tap >= kTapsAtOnce ? kTapsAtOnce : 1;
        if (count == kTapsAtOnce) {
          sum_taps<kTapsAtOnce>(g, x, from, rows, c, tap, lanes);
        } else {
          sum_taps<1>(g, x, from, rows, c, tap, lanes);
        }
        for (std::int64_t t = 0; t < count; ++t)
          for (int lane = 0; lane < kWidth; ++lane)
            dw[((k + lane) * g.in_channels + c) * taps + tap + t] = lanes[t * kWidth + lane];
        tap += count;
      }
    }
  }
}

// A 3x3 convolution of plain images with few channels, bias, 2x2 max-pool and relu: the first layer of a network. The
// forward keeps a window's outputs in registers, the weight gradient picks the pixels that the pool's index names.

namespace {

constexpr int kTaps = 9;
constexpr int kPatch = 16;                  // pixels under a window's four outputs
constexpr std::int64_t kFetchAhead = 1024;  // gradients; they are read in the order in which they lie

/// Adds one input channel to a window's outputs.
template <int kVecs>
[[gnu::always_inline]] inline void add_channel(const Vec (&taps)[kTaps][kVecs], const float* corner, std::int64_t line,
                                               Vec (&outputs)[kVecs][4]) {
  unroll<4>([&](int q) {
    for (int t = 0; t < kTaps; ++t) {
      const Vec pixel = broadcast(corner[(q / 2 + t / 3) * line + q % 2 + t % 3]);
      for (int v = 0; v < kVecs; ++v) outputs[v][q] = fma(pixel, taps[t][v], outputs[v][q]);
    }
  });
}

template <int kVecs>
[[gnu::always_inline]] inline void load_taps(const float* w, std::int64_t pitch, Vec (&taps)[kTaps][kVecs]) {
  for (int t = 0; t < kTaps; ++t)
    for (int v = 0; v < kVecs; ++v) taps[t][v] = load(w + t * pitch + v * kWidth);
}

/// kVecs vectors of output channels from channel k on. One input channel's weights stay in registers.
template <int kVecs, bool kOneChannel>
void forward_channels(const PooledConv& g, const float* w, const float* bias, const float* x, float* y,
                      std::uint8_t* index, std::int64_t k) {
  const std::int64_t width = g.width / 2, pixels = g.height / 2 * width, line = g.width + 2;
  Vec taps[kTaps][kVecs];
  load_taps<kVecs>(w + k, g.out_channels, taps);
  std::int64_t pixel = 0;
  for (std::int64_t p = 0; p < g.height / 2; ++p) {
    const float* corner = x + 2 * p * line;
    for (std::int64_t q = 0; q < width; ++q, ++pixel, corner += 2) {
      Vec outputs[kVecs][4];
      for (int v = 0; v < kVecs; ++v)
        for (int i = 0; i < 4; ++i) outputs[v][i] = load(bias + k + v * kWidth);
      for (std::int64_t c = 0; c < (kOneChannel ? 1 : g.in_channels); ++c) {
        if constexpr (!kOneChannel) load_taps<kVecs>(w + c * kTaps * g.out_channels + k, g.out_channels, taps);
        add_channel<kVecs>(taps, corner + c * (g.height + 2) * line, line, outputs);
      }
      for (int v = 0; v < kVecs; ++v) {
        const std::int64_t channel = k + v * kWidth;
        const std::int64_t at = (channel / kBlock * pixels + pixel) * kBlock + channel % kBlock;
        pool_window(outputs[v], y + at, index + at);
      }
    }
  }
}

/// The 4x4 pixels under each window of one padded image of one channel. Returns 0, or NaN if a pixel is not finite.
float collect_patches(const PooledConv& g, const float* x, float* patches) {
  const std::int64_t width = g.width / 2, line = g.width + 2;
  for (std::int64_t p = 0; p < g.height / 2; ++p)
    for (std::int64_t q = 0; q < width; ++q, patches += kPatch)
      for (int r = 0; r < 4; ++r) std::memcpy(patches + 4 * r, x + (2 * p + r) * line + 2 * q, 4 * sizeof(float));
  const std::int64_t count = (g.height + 2) * line;
  Vec zero = {};
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) zero = fma(load(x + i), Vec{}, zero);
  float total = sum(zero);
  for (; i < count; ++i) total += x[i] * 0.0f;
  return total;
}

/// Adds one image and input channel to the gradients dw (9, out) and, if given, db of kWidth output channels.
void add_image(const PooledConv& g, const float* patches, float spoil, const float* dy, const std::uint8_t* index,
               std::int64_t k, float* dw, float* db) {
  const std::int64_t pixels = g.height / 2 * (g.width / 2);
  const Vec scale = broadcast(g.scale);
  Vec total[kTaps], bias = {};
  for (int t = 0; t < kTaps; ++t) total[t] = load(dw + t * g.out_channels) + broadcast(spoil);
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    const std::int64_t at = (k / kBlock * pixels + pixel) * kBlock + k % kBlock;
    fetch(dy + at + kFetchAhead);
    fetch(index + at + kFetchAhead);
    const Ints place = load_bytes(index + at);
    const Vec gradient = place != kNoGradient ? load(dy + at) * scale : Vec{};
    const Ints corner = ((place & 2) << 1) + (place & 1);  // first of the 3x3 pixels, as an index into the patch
    bias = bias + gradient;
    for (int t = 0; t < kTaps; ++t)
      total[t] = fma(gradient, pick(patches + pixel * kPatch + t / 3 * 4, corner + t % 3), total[t]);
  }
  for (int t = 0; t < kTaps; ++t) store(dw + t * g.out_channels, total[t]);
  if (db) store(db, load(db) + bias);
}

}  // namespace

void plain_pooled_forward(const PooledConv& g, const float* w, const float* bias, const float* x, float* y,
                          std::uint8_t* index) {
  constexpr int kVecs = kRegisters == 32 ? 2 : 1;
  std::int64_t k = 0;
  for (; k + kVecs * kWidth <= g.out_channels; k += kVecs * kWidth)
    g.in_channels == 1 ? forward_channels<kVecs, true>(g, w, bias, x, y, index, k)
                       : forward_channels<kVecs, false>(g, w, bias, x, y, index, k);
  for (; k < g.out_channels; k += kWidth) forward_channels<1, false>(g, w, bias, x, y, index, k);
}

std::int64_t plain_pooled_scratch_floats(const PooledConv& g) {
  return g.height / 2 * (g.width / 2) * kPatch + kWidth;  // pick() may read past the last patch
}

void plain_pooled_backward_weights(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                                   std::int64_t rows, float* dw, float* db, float* scratch) {
  const std::int64_t image = (g.height + 2) * (g.width + 2), outputs = g.out_channels * (g.height * g.width / 4);
  for (std::int64_t i = 0; i < g.in_channels * kTaps * g.out_channels; ++i) dw[i] = 0;
  for (std::int64_t k = 0; k < g.out_channels; ++k) db[k] = 0;
  for (std::int64_t i = 0; i < kWidth; ++i) scratch[plain_pooled_scratch_floats(g) - kWidth + i] = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t c = 0; c < g.in_channels; ++c) {
      const float spoil = collect_patches(g, x + (row * g.in_channels + c) * image, scratch);
      for (std::int64_t k = 0; k < g.out_channels; k += kWidth)
        add_image(g, scratch, spoil, dy + row * outputs, index + row * outputs, k, dw + c * kTaps * g.out_channels + k,
                  c == 0 ? db + k : nullptr);
    }
}

}  // namespace duet::cpu::DUET_ISA
