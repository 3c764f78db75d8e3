// Convolutions with 3x3 filters and stride 1 on tensor cores, and their gradients: matrix products whose operands are
// taken from an image's patch in shared memory, so that neither images nor filters are laid out anew.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/mma.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

using namespace arithmetic;

constexpr int kSide = 3, kTaps = kSide * kSide;
constexpr int kStep = 8;  // channels, or pixels, that a product of tensor cores takes at once
// A block computes kRows output channels of a tile of up to kPixels pixels; each of its warps 16 of the channels.
constexpr int kRows = 32, kRowHalves = kRows / 16, kColumns = 5, kWarpPixels = 8 * kColumns, kPixelWarps = 5;
constexpr int kPixels = kPixelWarps * kWarpPixels, kHalf = kPixelWarps * kWarp, kBlock = kRowHalves * kHalf;
constexpr int kMostPatch = 344;  // pixels under a tile, with the filters' margin
constexpr int kPositions = (kMostPatch + kHalf - 1) / kHalf;

/// Divides numbers of up to 9 bits by two instructions.
struct Divisor {
  unsigned by, factor;
};
constexpr int kDivisorBits = 20;
Divisor divisor(int by) {
  return {static_cast<unsigned>(by),
          ((1u << kDivisorBits) + static_cast<unsigned>(by) - 1) / static_cast<unsigned>(by)};
}

/// Tiles of pixels: parts of an image, or several images.
struct ConvTiles {
  int images, height, width, down, across;
  Divisor pixels, columns, patch_pixels, patch_columns;  // of an image's part of a tile, and of the patch under it
};

struct Place {
  int image, row, column;
};
__device__ inline Place place_of(int number, const Divisor& pixels, const Divisor& columns) {
  const unsigned e = static_cast<unsigned>(number), image = e * pixels.factor >> kDivisorBits,
                 rest = e - image * pixels.by, row = rest * columns.factor >> kDivisorBits;
  return {static_cast<int>(image), static_cast<int>(row), static_cast<int>(rest - row * columns.by)};
}

/// The first of a tile's images, and its upper left pixel in them.
struct Tile {
  int image, top, left;
};
__device__ inline Tile tile_at(const ConvTiles& g, int number) {
  if (g.down * g.across == 1) return {number * g.images, 0, 0};
  const int rest = number / g.across, image = rest / g.down;
  return {image, (rest - image * g.down) * g.height, (number - rest * g.across) * g.width};
}

/// The operand of a product, whose lower 13 bits tensor cores leave out: rounded to the nearest TF32, or to bfloat16.
template <bool kRounds>
__device__ inline float rounded(float value) {
  return kRounds ? operand<true>(value) : to_tf32(value);
}

/// Where pixel `e` of the patch under a tile lies in the images that begin with the tile's first, -1 outside of them;
/// kPooled: where the value of its window does, and its place in that.
struct Position {
  int offset, place;
};
template <bool kPooled>
__device__ inline Position position_of(const Conv3x3& c, const ConvTiles& g, const Tile& tile, int e) {
  const Place at = place_of(e, g.patch_pixels, g.patch_columns);
  const int h = tile.top + at.row - c.pad_h, w = tile.left + at.column - c.pad_w;
  if (at.image >= g.images || tile.image + at.image >= c.rows || h < 0 || h >= c.height || w < 0 || w >= c.width)
    return {-1, 0};
  const int image = at.image * c.channels;
  if constexpr (kPooled) return {(image * (c.height / 2) + h / 2) * (c.width / 2) + w / 2, h % 2 * 2 + w % 2};
  return {(image * c.height + h) * c.width + w, 0};
}

/// The part of the patch that lies under a pixel of the tile, from its first tap on; under the first for those beyond.
__device__ inline int patch_place(const ConvTiles& g, int pixel) {
  const Place at = place_of(pixel, g.pixels, g.columns);
  const int patch_width = g.width + kSide - 1;
  return at.image < g.images ? at.image * (g.height + kSide - 1) * patch_width + at.row * patch_width + at.column : 0;
}

// Strides in shared memory with which the lanes of a warp read from 32 banks.
constexpr int kPatchStride = 360, kRowStride = 40, kTapStride = kStep * kRowStride + 1;
constexpr int kFilterLoads = kStep, kFilterThreads = kRows * kTaps;
static_assert(kFilterThreads <= kBlock && kFilterThreads == kRows / kFilterLoads * kStep * kTaps);

/// The channels of a product's step, on their way from global to shared memory by way of registers.
template <bool kTransposed, bool kPooled, bool kRounds>
struct Stage {
  __device__ Stage(const ConvImage& images, const float* filters, const Conv3x3& c, const ConvTiles& g,
                   const Tile& tile, int row)
      : c_(c),
        thread_(static_cast<int>(threadIdx.x) % kBlock),
        pixels_(kPooled ? c.height / 2 * (c.width / 2) : c.height * c.width) {
    const std::int64_t first = std::int64_t{tile.image} * c.channels * pixels_;
    values_ = images.values + first;
    index_ = kPooled ? images.index + first : nullptr;
    scale_ = images.scale;
    DUET_UNROLL
    for (int i = 0; i < kPositions; ++i) positions_[i] = position_of<kPooled>(c, g, tile, thread_ % kHalf + i * kHalf);
    const int own = kTransposed ? thread_ / kTaps : thread_ / (kStep * kTaps),
              channel = kTransposed ? 0 : thread_ % (kStep * kTaps) / kTaps, tap = thread_ % kTaps;
    filters_ = filters + (kTransposed ? std::int64_t{row} * kTaps + thread_
                                      : (std::int64_t{row + own} * c.channels + channel) * kTaps + tap);
    filter_place_ = (kTransposed ? kTaps - 1 - tap : tap) * kTapStride + channel * kRowStride + own;
    channels_ = c.channels - channel;
    loads_ = thread_ < kFilterThreads ? c.outputs - row - own : 0;
  }

  __device__ void load(int channel) {
    const int first = channel + thread_ / kHalf * (kStep / 2);
    DUET_UNROLL
    for (int k = 0; k < kStep / 2; ++k) DUET_UNROLL
    for (int i = 0; i < kPositions; ++i) {
      const int at = (first + k) * pixels_ + positions_[i].offset;
      const bool there = positions_[i].offset >= 0 && first + k < c_.channels;
      patch_[k][i] = there ? values_[at] : 0.0f;
      if constexpr (kPooled) places_[k][i] = there ? index_[at] : kNoGradient;
    }
    DUET_UNROLL
    for (int i = 0; i < kFilterLoads; ++i) {
      const bool there = kTransposed ? loads_ > 0 && channel + i < channels_ : loads_ > 4 * i && channel < channels_;
      const int at = kTransposed ? (channel + i) * c_.outputs * kTaps : (4 * i * c_.channels + channel) * kTaps;
      taps_[i] = there ? filters_[at] : 0.0f;
    }
  }

  __device__ void store(float* patch, float* taps) const {
    patch += thread_ / kHalf * (kStep / 2) * kPatchStride + thread_ % kHalf;
    DUET_UNROLL
    for (int i = 0; i < kPositions; ++i) {
      if (i == kPositions - 1 && thread_ % kHalf + i * kHalf >= kPatchStride) break;
      DUET_UNROLL
      for (int k = 0; k < kStep / 2; ++k) {
        float value = patch_[k][i];
        if constexpr (kPooled) value = places_[k][i] == positions_[i].place ? value * scale_ : 0.0f;
        patch[k * kPatchStride + i * kHalf] = rounded<kRounds>(value);
      }
    }
    if (thread_ >= kFilterThreads) return;
    taps += filter_place_;
    DUET_UNROLL
    for (int i = 0; i < kFilterLoads; ++i) taps[i * (kTransposed ? kRowStride : 4)] = rounded<kRounds>(taps_[i]);
  }

  const Conv3x3& c_;
  int thread_, pixels_;
  const float *values_, *filters_;
  const std::uint8_t* index_;
  float scale_;
  Position positions_[kPositions];
  int filter_place_, channels_, loads_;
  float patch_[kStep / 2][kPositions], taps_[kFilterLoads];
  int places_[kStep / 2][kPositions];
};

constexpr int kStageFloats = kStep * kPatchStride + kTaps * kTapStride;

/// A warp's place in the product of a block, and a lane's in the products of tensor cores.
struct WarpPlace {
  int inner, outer, pixel, row;
};
__device__ inline WarpPlace warp_place() {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) % kBlock / kWarp;
  return {lane % 4, lane / 4, warp % kPixelWarps * kWarpPixels, warp / kPixelWarps * 16 + lane / 4};
}

/// sums: of rows `row` and row + 8 at pixels pixel + 8 j + 2 inner, and the next ones, of a tile of the convolution of
/// `images`, which have c.channels, with c.outputs filters; kTransposed: with filters (channels, outputs, 3, 3), from
/// the last tap to the first. Each of kGroups groups of kBlock threads takes its part of the channels, and the first
/// has the sums of all. shared: kGroups * kStageFloats.
template <bool kTransposed, bool kPooled, bool kRounds, int kGroups>
__device__ inline void convolve_tile(const ConvImage& images, const float* filters, const Conv3x3& c,
                                     const ConvTiles& g, const Tile& tile, int first_row, float* shared,
                                     float (&sums)[kColumns][4]) {
  const auto [inner, outer, pixel, row] = warp_place();
  const int group = static_cast<int>(threadIdx.x) / kBlock;
  float *const patch = shared + group * kStageFloats, *const taps = patch + kStep * kPatchStride;
  const int patch_width = g.width + kSide - 1;
  Stage<kTransposed, kPooled, kRounds> stage(images, filters, c, g, tile, first_row);
  const float* columns[kColumns];
  DUET_UNROLL
  for (int j = 0; j < kColumns; ++j) columns[j] = patch + inner * kPatchStride + patch_place(g, pixel + j * 8 + outer);
  stage.load(group * kStep);
  for (int first = 0; first < c.channels; first += kGroups * kStep) {
    __syncthreads();
    stage.store(patch, taps);
    __syncthreads();
    if (first + kGroups * kStep < c.channels) stage.load(first + (kGroups + group) * kStep);
    DUET_UNROLL
    for (int r = 0; r < kSide; ++r) {
      const float* under[kColumns];
      DUET_UNROLL
      for (int j = 0; j < kColumns; ++j) under[j] = columns[j] + r * patch_width;
      DUET_UNROLL
      for (int s = 0; s < kSide; ++s) {
        const float* const at = taps + (r * kSide + s) * kTapStride + inner * kRowStride + row;
        const float a[4] = {at[0], at[8], at[4 * kRowStride], at[4 * kRowStride + 8]};
        DUET_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          const float b[2] = {under[j][s], under[j][s + 4 * kPatchStride]};
          multiply_add(sums[j], a, b);
        }
      }
    }
  }
  for (int other = 1; other < kGroups; ++other) {
    float* const theirs = shared + row * kPixels + pixel + 2 * inner;
    __syncthreads();
    DUET_UNROLL
    for (int j = 0; j < kColumns; ++j) DUET_UNROLL
    for (int part = 0; part < 4; ++part) {
      float& sum = theirs[part / 2 * 8 * kPixels + j * 8 + part % 2];
      if (group == other) sum = sums[j][part];
    }
    __syncthreads();
    DUET_UNROLL
    for (int j = 0; j < kColumns; ++j) DUET_UNROLL
    for (int part = 0; part < 4; ++part)
      if (group == 0) sums[j][part] += theirs[part / 2 * 8 * kPixels + j * 8 + part % 2];
  }
}

/// Groups of threads of a block: where filters widen a network, the gradients of images have fewer blocks, and more
/// channels to add up.
template <bool kTransposed>
constexpr int kGroupsOf = kTransposed ? 2 : 1;

/// A block for each tile and each kRows outputs.
template <bool kTransposed, bool kPooled, bool kRounds>
__global__ void __launch_bounds__(kGroupsOf<kTransposed>* kBlock, 2 / kGroupsOf<kTransposed>)
    conv3x3_kernel(ConvImage images, const float* __restrict__ filters, float* __restrict__ y, Conv3x3 c, ConvTiles g) {
  constexpr int kGroups = kGroupsOf<kTransposed>;
  __shared__ float shared[kGroups * kStageFloats];
  const auto [inner, outer, pixel, row_of_block] = warp_place();
  const int first_row = static_cast<int>(blockIdx.y) * kRows, row = first_row + row_of_block;
  float sums[kColumns][4] = {};
  convolve_tile<kTransposed, kPooled, kRounds, kGroups>(images, filters, c, g, tile_at(g, static_cast<int>(blockIdx.x)),
                                                        first_row, shared, sums);
  if (threadIdx.x >= kBlock) return;
  const Tile tile = tile_at(g, static_cast<int>(blockIdx.x));  // again: registers
  const int height = c.out_height(), width = c.out_width(), plane = height * width;
  float* const first = y + (std::int64_t{tile.image} * c.outputs + row) * plane;
  DUET_UNROLL
  for (int j = 0; j < kColumns; ++j) DUET_UNROLL
  for (int side = 0; side < 2; ++side) {
    const Place at = place_of(pixel + j * 8 + 2 * inner + side, g.pixels, g.columns);
    const int h = tile.top + at.row, w = tile.left + at.column;
    if (at.image >= g.images || tile.image + at.image >= c.rows || h >= height || w >= width) continue;
    float* const place = first + at.image * c.outputs * plane + h * width + w;
    if (row < c.outputs) place[0] = sums[j][side];
    if (row + 8 < c.outputs) place[8 * plane] = sums[j][2 + side];
  }
}

/// The upper left pixel of a 2x2 window of a tile.
__device__ inline int pixel_of_window(const ConvTiles& g, int window) {
  const int row = static_cast<int>(2 * static_cast<unsigned>(window) * g.columns.factor >> kDivisorBits);
  return 2 * window + row * g.width;
}

/// The same, with the rest of conv_pool_relu_forward behind it: a warp takes some of the rows, a lane some windows.
template <bool kRounds>
__global__ void __launch_bounds__(kBlock, 2)
    conv3x3_pool_kernel(ConvImage images, const float* __restrict__ filters, const float* __restrict__ bias,
                        float* __restrict__ y, std::uint8_t* __restrict__ index, Conv3x3 c, ConvTiles g, bool drops,
                        StepDraw counted, float scale) {
  __shared__ float shared[kRows * kPixels];
  static_assert(kRows * kPixels >= kStageFloats);
  const auto [inner, outer, pixel, row_of_block] = warp_place();
  const Tile tile = tile_at(g, static_cast<int>(blockIdx.x));
  const int first_row = static_cast<int>(blockIdx.y) * kRows, lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[kColumns][4] = {};
  convolve_tile<false, false, kRounds, 1>(images, filters, c, g, tile, first_row, shared, sums);
  __syncthreads();
  DUET_UNROLL
  for (int j = 0; j < kColumns; ++j) DUET_UNROLL
  for (int part = 0; part < 4; ++part)
    shared[(row_of_block + part / 2 * 8) * kPixels + pixel + j * 8 + 2 * inner + part % 2] = sums[j][part];
  __syncthreads();
  const DropoutDraw draw = drops ? draw_now(counted) : DropoutDraw{};
  const int high = c.out_height() / 2, wide = c.out_width() / 2;
  for (int window = lane; window < kPixels / 4; window += kWarp) {
    const int first = pixel_of_window(g, window);
    const Place at = place_of(first, g.pixels, g.columns);
    const int p = (tile.top + at.row) / 2, q = (tile.left + at.column) / 2, image = tile.image + at.image;
    if (at.image >= g.images || image >= c.rows || p >= high || q >= wide) continue;
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < kRows && first_row + row < c.outputs;
         row += kBlock / kWarp) {
      const float* const values = shared + row * kPixels + first;
      const float b = bias[first_row + row];
      float best = values[0] + b;
      int place = 0;
      look_at(values[1] + b, 1, best, place);
      look_at(values[g.width] + b, 2, best, place);
      look_at(values[g.width + 1] + b, 3, best, place);
      if (relu_stops(best)) best = 0.0f, place = kNoGradient;
      const int element = ((first_row + row) * high + p) * wide + q;
      if (drops) {
        const bool keeps = dropout_keeps_element(draw, image, element);
        best *= keeps ? scale : 0.0f;
        if (!keeps) place = kNoGradient;
      }
      const std::int64_t to = std::int64_t{image} * c.outputs * high * wide + element;
      y[to] = best;
      index[to] = static_cast<std::uint8_t>(place);
    }
  }
}

constexpr int kImageStride = 356, kGradientStride = 204;  // as above

/// Puts the patch of kStep channels under a tile into shared memory.
template <bool kRounds>
__device__ inline void load_patch(const float* x, float* patch, const Conv3x3& c, const ConvTiles& g, const Tile& tile,
                                  int channel) {
  const int thread = static_cast<int>(threadIdx.x), first = channel + thread / kHalf * (kStep / 2),
            pixels = c.height * c.width;
  x += (std::int64_t{tile.image} * c.channels + first) * pixels;
  patch += thread / kHalf * (kStep / 2) * kImageStride;
  DUET_UNROLL
  for (int i = 0; i < kPositions; ++i) {
    const int e = thread % kHalf + i * kHalf;
    if (i == kPositions - 1 && e >= kImageStride) break;
    const int offset = position_of<false>(c, g, tile, e).offset;
    DUET_UNROLL
    for (int k = 0; k < kStep / 2; ++k)
      patch[k * kImageStride + e] =
          offset >= 0 && first + k < c.channels ? rounded<kRounds>(x[k * pixels + offset]) : 0.0f;
  }
}

/// Puts kRows channels of a gradient's tile into shared memory; a warp loads some rows, a lane some pixels or windows.
template <bool kPooled, bool kRounds>
__device__ inline void load_gradient(const ConvImage& dy, float* gradient, const Conv3x3& c, const ConvTiles& g,
                                     const Tile& tile, int first_row) {
  constexpr int kUnit = kPooled ? 2 : 1, kWarps = kBlock / kWarp, kTurns = (kRows + kWarps - 1) / kWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int high = c.out_height() / kUnit, wide = c.out_width() / kUnit, plane = high * wide;
  const std::int64_t first = (std::int64_t{tile.image} * c.outputs + first_row) * plane;
  const float* const values = dy.values + first;
  const std::uint8_t* const index = kPooled ? dy.index + first : nullptr;
  DUET_NO_UNROLL  // registers
      for (int unit = lane; unit < kPixels / (kUnit * kUnit); unit += kWarp) {
    const int pixel = kPooled ? pixel_of_window(g, unit) : unit;
    const Place at = place_of(pixel, g.pixels, g.columns);
    if (at.image >= g.images) break;
    const int h = (tile.top + at.row) / kUnit, w = (tile.left + at.column) / kUnit;
    const bool inside = tile.image + at.image < c.rows && h < high && w < wide;
    const int from = (at.image * c.outputs + warp) * plane + h * wide + w;
    float value[kTurns];
    int place[kTurns];
    DUET_UNROLL
    for (int k = 0; k < kTurns; ++k) {
      const int row = warp + k * kWarps;
      const bool there = inside && row < kRows && first_row + row < c.outputs;
      value[k] = there ? values[from + k * kWarps * plane] : 0.0f;
      if constexpr (kPooled) place[k] = there ? index[from + k * kWarps * plane] : kNoGradient;
    }
    DUET_UNROLL
    for (int k = 0; k < kTurns; ++k) {
      if (k == kTurns - 1 && warp + k * kWarps >= kRows) break;
      float* const to = gradient + (warp + k * kWarps) * kGradientStride + pixel;
      const float operand = rounded<kRounds>(kPooled ? value[k] * dy.scale : value[k]);
      if constexpr (kPooled) {
        to[0] = place[k] == 0 ? operand : 0.0f, to[1] = place[k] == 1 ? operand : 0.0f;
        to[g.width] = place[k] == 2 ? operand : 0.0f, to[g.width + 1] = place[k] == 3 ? operand : 0.0f;
      } else {
        to[0] = operand;
      }
    }
  }
}

/// partials (parts, outputs, channels, 9): the gradients of the filters over a part of the tiles. A block for each
/// part, each kStep channels and each kRows outputs.
template <bool kPooled, bool kRounds>
__global__ void __launch_bounds__(kBlock, 2)
    conv3x3_weights_kernel(const float* __restrict__ x, ConvImage dy, float* __restrict__ partials, Conv3x3 c,
                           ConvTiles g, int tiles, int tiles_of_part) {
  __shared__ float patch[kStep * kImageStride];
  __shared__ float gradient[kRows * kGradientStride];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp, inner = lane % 4,
            outer = lane / 4;
  const int pixel = warp % kPixelWarps * kWarpPixels + inner, row = warp / kPixelWarps * 16 + outer;
  const int first_channel = static_cast<int>(blockIdx.y) * kStep, first_row = static_cast<int>(blockIdx.z) * kRows,
            patch_width = g.width + kSide - 1;
  for (int e = thread; e < kRows * kGradientStride; e += kBlock) gradient[e] = 0;
  const float* columns[kColumns][2];
  DUET_UNROLL
  for (int j = 0; j < kColumns; ++j) DUET_UNROLL
  for (int half = 0; half < 2; ++half)
    columns[j][half] = patch + outer * kImageStride + patch_place(g, pixel + j * 8 + half * 4);

  float sums[kTaps][4] = {};
  const int begin = static_cast<int>(blockIdx.x) * tiles_of_part,
            end = begin + tiles_of_part < tiles ? begin + tiles_of_part : tiles;
  for (int number = begin; number < end; ++number) {
    const Tile tile = tile_at(g, number);
    __syncthreads();
    load_patch<kRounds>(x, patch, c, g, tile, first_channel);
    load_gradient<kPooled, kRounds>(dy, gradient, c, g, tile, first_row);
    __syncthreads();
    DUET_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const float* const at = gradient + row * kGradientStride + pixel + j * 8;
      const float a[4] = {at[0], at[8 * kGradientStride], at[4], at[8 * kGradientStride + 4]};
      DUET_UNROLL
      for (int r = 0; r < kSide; ++r) {
        const float *const left = columns[j][0] + r * patch_width, *const right = columns[j][1] + r * patch_width;
        DUET_UNROLL
        for (int s = 0; s < kSide; ++s) {
          const float b[2] = {left[s], right[s]};
          multiply_add(sums[r * kSide + s], a, b);
        }
      }
    }
  }

  // The sums of the warps with other pixels, one after the other.
  float* const total = gradient + (row * kStep + 2 * inner) * kTaps;  // (kRows, kStep, kTaps)
  for (int turn = 0; turn < kPixelWarps; ++turn) {
    __syncthreads();
    if (turn != warp % kPixelWarps) continue;
    DUET_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) DUET_UNROLL
    for (int part = 0; part < 4; ++part) {
      float& sum = total[(part / 2 * 8 * kStep + part % 2) * kTaps + tap];
      sum = turn == 0 ? sums[tap][part] : sum + sums[tap][part];
    }
  }
  __syncthreads();
  partials += ((std::int64_t{blockIdx.x} * c.outputs + first_row) * c.channels + first_channel) * kTaps;
  for (int e = thread; e < kRows * kStep * kTaps; e += kBlock) {
    const int output = e / (kStep * kTaps), rest = e - output * kStep * kTaps;
    if (first_row + output < c.outputs && first_channel + rest / kTaps < c.channels)
      partials[output * c.channels * kTaps + rest] = gradient[e];
  }
}

/// A thread for each element.
__global__ void __launch_bounds__(kThreads)
    conv3x3_sums_kernel(const float* __restrict__ partials, int parts, std::int64_t count, float* __restrict__ dw) {
  const std::int64_t i = thread_in_grid();
  if (i >= count) return;
  float total = 0;
  for (int part = 0; part < parts; ++part) total += partials[part * count + i];
  dw[i] = total;
}

/// The tiles that are fewest, of even sizes for pooled gradients.
ConvTiles tiles_of(const Conv3x3& c, bool pooled) {
  const int height = c.out_height(), width = c.out_width(), unit = pooled ? 2 : 1;
  ConvTiles best = {};
  for (int w = unit; w <= width && w * unit <= kPixels; w += unit) {
    for (int h = unit; h <= height && h * w <= kPixels && (h + 2) * (w + 2) <= kMostPatch; h += unit) {
      const ConvTiles g = {1, h, w, (height + h - 1) / h, (width + w - 1) / w, {}, {}, {}, {}};
      const int tiles = g.down * g.across, least = best.down * best.across;
      if (least == 0 || tiles < least || (tiles == least && h * w < best.height * best.width)) best = g;
    }
  }
  if (best.down * best.across == 1)
    best.images = std::min(kPixels / (height * width), kMostPatch / ((height + 2) * (width + 2)));
  best.pixels = divisor(best.height * best.width);
  best.columns = divisor(best.width);
  best.patch_pixels = divisor((best.height + 2) * (best.width + 2));
  best.patch_columns = divisor(best.width + 2);
  return best;
}

constexpr int kMostBlocks = 264;  // of the gradients of filters

int count_tiles(const Conv3x3& c, const ConvTiles& g) { return (c.rows + g.images - 1) / g.images * g.down * g.across; }
int tiles_of_part(const Conv3x3& c, int tiles) {
  const int others = ((c.channels + kStep - 1) / kStep) * ((c.outputs + kRows - 1) / kRows),
            parts = std::clamp(kMostBlocks / others, 1, tiles);
  return (tiles + parts - 1) / parts;
}

}  // namespace

void conv3x3(const ConvImage& image, const float* w, bool transposed, float* y, const Conv3x3& c, cudaStream_t stream) {
  const bool pooled = image.index != nullptr;
  const ConvTiles g = tiles_of(c, false);
  const dim3 blocks(static_cast<unsigned>(count_tiles(c, g)), blocks_of(c.outputs, kRows).x);
  const dim3 threads(static_cast<unsigned>(kBlock * (transposed ? kGroupsOf<true> : kGroupsOf<false>)));
  const auto run = [&](auto kernel) { launch(kernel, blocks, threads, 0, stream, image, w, y, c, g); };
  if (!transposed) {
    run(c.rounds ? conv3x3_kernel<false, false, true> : conv3x3_kernel<false, false, false>);
  } else if (pooled) {
    run(c.rounds ? conv3x3_kernel<true, true, true> : conv3x3_kernel<true, true, false>);
  } else {
    run(c.rounds ? conv3x3_kernel<true, false, true> : conv3x3_kernel<true, false, false>);
  }
}

void conv3x3_pool_forward(const float* x, const float* w, const float* bias, float* y, std::uint8_t* index,
                          const StepDraw* draw, float scale, const Conv3x3& c, cudaStream_t stream) {
  const ConvTiles g = tiles_of(c, true);
  launch(c.rounds ? conv3x3_pool_kernel<true> : conv3x3_pool_kernel<false>,
         dim3(static_cast<unsigned>(count_tiles(c, g)), blocks_of(c.outputs, kRows).x), dim3(kBlock), 0, stream,
         ConvImage{x, nullptr, 1.0f}, w, bias, y, index, c, g, draw != nullptr, draw == nullptr ? StepDraw{} : *draw,
         scale);
}

std::int64_t conv3x3_partials(const Conv3x3& c, bool pooled) {
  const int tiles = count_tiles(c, tiles_of(c, pooled)), each = tiles_of_part(c, tiles);
  return std::int64_t{(tiles + each - 1) / each} * c.outputs * c.channels * kTaps;
}

void conv3x3_weights(const float* x, const ConvImage& dy, float* partials, float* dw, const Conv3x3& c,
                     cudaStream_t stream) {
  const bool pooled = dy.index != nullptr;
  const ConvTiles g = tiles_of(c, pooled);
  const int tiles = count_tiles(c, g), each = tiles_of_part(c, tiles), parts = (tiles + each - 1) / each;
  const auto kernel = pooled ? (c.rounds ? conv3x3_weights_kernel<true, true> : conv3x3_weights_kernel<true, false>)
                             : (c.rounds ? conv3x3_weights_kernel<false, true> : conv3x3_weights_kernel<false, false>);
  launch(kernel, dim3(static_cast<unsigned>(parts), blocks_of(c.channels, kStep).x, blocks_of(c.outputs, kRows).x),
         dim3(kBlock), 0, stream, x, dy, partials, c, g, tiles, each);
  const std::int64_t count = std::int64_t{c.outputs} * c.channels * kTaps;
  launch(conv3x3_sums_kernel, blocks_for(count), dim3(kThreads), 0, stream, partials, parts, count, dw);
}

}  // namespace duet::cuda::kernels
