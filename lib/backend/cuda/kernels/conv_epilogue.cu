// Bias, pooling, relu and dropout after a convolution, in one pass over its output; and their gradient.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

using namespace arithmetic;

// Threads of the block that sums over a channel: for up to kFewElements elements, and for more.
constexpr int kFewThreads = 64, kManyThreads = 512;
constexpr std::int64_t kFewElements = 4096;
constexpr int kChunk = kDropoutLanes * kDropoutNumbers;

__global__ void __launch_bounds__(kThreads)
    add_channel_bias_kernel(LaunchRows images, float* __restrict__ y, const float* __restrict__ bias, unsigned channels,
                            unsigned pixels) {
  const unsigned i = thread_in_launch();
  if (i < images.threads) y[images.first * channels * pixels + i] += bias[i / pixels % channels];
}

/// Adds the bias to four elements of one channel at a time.
__global__ void __launch_bounds__(kThreads)
    add_channel_bias_by_four_kernel(LaunchRows images, float4* __restrict__ y, const float* __restrict__ bias,
                                    unsigned channels, unsigned pixels) {
  const unsigned i = thread_in_launch();
  if (i >= images.threads) return;
  const float b = bias[i / pixels % channels];
  y += images.first * channels * pixels;
  float4 v = y[i];
  v.x += b;
  v.y += b;
  v.z += b;
  v.w += b;
  y[i] = v;
}

/// A block for each channel, a warp for each image in turn.
template <bool kIndexed, int kSumThreads>
__global__ void __launch_bounds__(kSumThreads)
    channel_bias_gradient_kernel(const float* __restrict__ dy, const std::uint8_t* __restrict__ index, float scale,
                                 float* __restrict__ db, std::int64_t images, int channels, std::int64_t pixels) {
  constexpr int kWarps = kSumThreads / kWarp;
  const int channel = static_cast<int>(blockIdx.x), lane = threadIdx.x % kWarp;
  float total = 0;
  for (std::int64_t image = threadIdx.x / kWarp; image < images; image += kWarps) {
    const std::int64_t begin = (image * channels + channel) * pixels;
    for (std::int64_t i = begin + lane; i < begin + pixels; i += kWarp) {
      const float value = dy[i];  // without a condition, so that it does not wait for the index
      if constexpr (kIndexed) {
        total += index[i] == kNoGradient ? 0.0f : value;
      } else {
        total += value;
      }
    }
  }
  total = block_sum<kSumThreads>(total);
  if (threadIdx.x == 0) db[channel] = total * scale;
}

/// The best of one window. kByTwo: 2x2 windows in images of even width, whose rows can be read two floats at a time.
template <bool kByTwo>
__device__ inline float pool_tile(const float* __restrict__ image, float bias, const TiledPool& g, int p, int q,
                                  int& place) {
  place = 0;
  if constexpr (kByTwo) {
    const auto* const rows = reinterpret_cast<const float2*>(image);
    const int at = p * g.width + q;  // in pairs: row 2p, column 2q
    const float2 upper = rows[at], lower = rows[at + g.width / 2];
    float best = upper.x + bias;
    look_at(upper.y + bias, 1, best, place);
    look_at(lower.x + bias, 2, best, place);
    look_at(lower.y + bias, 3, best, place);
    return best;
  } else {
    float best = -INFINITY;
    for (int r = 0; r < g.kernel_h; ++r)
      for (int s = 0; s < g.kernel_w; ++s)
        look_at(image[(p * g.kernel_h + r) * g.width + q * g.kernel_w + s] + bias, r * g.kernel_w + s, best, place);
    return best;
  }
}

/// A thread for each lane of each of dropout's chunks: eight elements of a row, 16 apart, interleaved with
/// its neighbours'.
template <bool kByTwo>
__global__ void __launch_bounds__(kThreads)
    bias_pool_relu_forward_kernel(const float* __restrict__ image, const float* __restrict__ bias,
                                  float* __restrict__ y, std::uint8_t* __restrict__ index, TiledPool g, int lanes,
                                  bool drops, StepDraw counted, float scale) {
  const std::int64_t i = thread_in_grid();
  if (i >= g.rows * lanes) return;
  const std::int64_t row = i / lanes;
  const auto in_row = static_cast<std::uint32_t>(i - row * lanes);
  const int image_pixels = g.height * g.width, pixels = g.out_height * g.out_width, columns = g.channels * pixels;
  image += row * g.channels * image_pixels;
  y += row * columns;
  index += row * columns;
  const DropoutDraw draw = drops ? draw_now(counted) : DropoutDraw{};
  PhiloxWords words = {};
  if (drops) words = dropout_words(draw, row, in_row);
  int e = static_cast<int>(in_row / kDropoutLanes * kChunk + in_row % kDropoutLanes);
  DUET_UNROLL
  for (int j = 0; j < kDropoutNumbers; ++j, e += kDropoutLanes) {
    if (e >= columns) return;
    const int channel = e / pixels, pixel = e - channel * pixels;
    const int p = pixel / g.out_width, q = pixel - p * g.out_width;
    int place;
    float best = pool_tile<kByTwo>(image + channel * image_pixels, bias[channel], g, p, q, place);
    if (relu_stops(best)) {
      best = 0.0f;
      place = kNoGradient;
    }
    if (drops) {
      const bool keeps = dropout_keeps(draw, words, j);
      best *= keeps ? scale : 0.0f;
      if (!keeps) place = kNoGradient;
    }
    y[e] = best;
    index[e] = static_cast<std::uint8_t>(place);
  }
}

/// A thread for each pixel of the image.
__global__ void __launch_bounds__(kThreads)
    bias_pool_relu_backward_kernel(LaunchRows images, const float* __restrict__ dy,
                                   const std::uint8_t* __restrict__ index, float scale, float* __restrict__ gradient,
                                   TiledPool g) {
  const unsigned i = thread_in_launch(), image_pixels = static_cast<unsigned>(g.height * g.width),
                 at_image = i / image_pixels;
  if (i >= images.threads) return;
  const std::int64_t image = images.first + at_image;
  const int pixel = static_cast<int>(i - at_image * image_pixels), h = pixel / g.width, w = pixel - h * g.width;
  const int p = h / g.kernel_h, q = w / g.kernel_w;
  float value = 0;
  if (p < g.out_height && q < g.out_width) {
    const std::int64_t at = (image * g.out_height + p) * g.out_width + q;
    const int place = (h - p * g.kernel_h) * g.kernel_w + w - q * g.kernel_w;
    if (index[at] == place) value = dy[at] * scale;
  }
  gradient[image * image_pixels + pixel] = value;
}

/// For 2x2 windows that tile the whole image: a thread for each window.
__global__ void __launch_bounds__(kThreads)
    bias_pool_relu_backward_by_two_kernel(LaunchRows rows, const float* __restrict__ dy,
                                          const std::uint8_t* __restrict__ index, float scale,
                                          float2* __restrict__ gradient, unsigned out_width) {
  const unsigned i = thread_in_launch();
  if (i >= rows.threads) return;
  const std::int64_t begin = rows.first * out_width;
  const float value = dy[begin + i] * scale;
  const int place = index[begin + i];
  // Rows of windows stand below each other through all images; in pairs of floats each takes two rows of out_width.
  const std::int64_t at = 2 * begin + i / out_width * out_width + i;
  gradient[at] = make_float2(place == 0 ? value : 0.0f, place == 1 ? value : 0.0f);
  gradient[at + out_width] = make_float2(place == 2 ? value : 0.0f, place == 3 ? value : 0.0f);
}

}  // namespace

void add_channel_bias(float* y, const float* bias, std::int64_t images, int channels, std::int64_t pixels,
                      cudaStream_t stream) {
  const auto planes = static_cast<unsigned>(channels), size = static_cast<unsigned>(pixels);
  if (pixels % 4 == 0 && aligned(y, sizeof(float4))) {
    launch_rows(add_channel_bias_by_four_kernel, images, channels * (pixels / 4), kThreads, stream,
                reinterpret_cast<float4*>(y), bias, planes, size / 4);
  } else {
    launch_rows(add_channel_bias_kernel, images, channels * pixels, kThreads, stream, y, bias, planes, size);
  }
}

void channel_bias_gradient(const float* dy, const std::uint8_t* index, float scale, float* db, std::int64_t images,
                           int channels, std::int64_t pixels, cudaStream_t stream) {
  if (channels == 0) return;
  const bool few = images * pixels <= kFewElements;
  const auto kernel =
      index == nullptr
          ? (few ? channel_bias_gradient_kernel<false, kFewThreads> : channel_bias_gradient_kernel<false, kManyThreads>)
          : (few ? channel_bias_gradient_kernel<true, kFewThreads> : channel_bias_gradient_kernel<true, kManyThreads>);
  launch(kernel, dim3(static_cast<unsigned>(channels)), dim3(few ? kFewThreads : kManyThreads), 0, stream, dy, index,
         scale, db, images, channels, pixels);
}

void bias_pool_relu_forward(const float* image, const float* bias, float* y, std::uint8_t* index,
                            const TiledPool& shape, const StepDraw* draw, float scale, cudaStream_t stream) {
  const int columns = shape.channels * shape.out_height * shape.out_width;
  if (shape.rows * columns == 0) return;
  const int lanes = (columns + kChunk - 1) / kChunk * kDropoutLanes;
  const bool by_two =
      shape.kernel_h == 2 && shape.kernel_w == 2 && shape.width % 2 == 0 && aligned(image, sizeof(float2));
  const auto kernel = by_two ? bias_pool_relu_forward_kernel<true> : bias_pool_relu_forward_kernel<false>;
  launch(kernel, blocks_for(shape.rows * lanes), dim3(kThreads), 0, stream, image, bias, y, index, shape, lanes,
         draw != nullptr, draw == nullptr ? StepDraw{} : *draw, scale);
}

void bias_pool_relu_backward(const float* dy, const std::uint8_t* index, float scale, float* image_gradient,
                             const TiledPool& shape, cudaStream_t stream) {
  const std::int64_t pixels = static_cast<std::int64_t>(shape.height) * shape.width,
                     images = shape.rows * shape.channels;
  if (shape.kernel_h == 2 && shape.kernel_w == 2 && shape.height == 2 * shape.out_height &&
      shape.width == 2 * shape.out_width && aligned(image_gradient, sizeof(float2))) {
    launch_rows(bias_pool_relu_backward_by_two_kernel, images * shape.out_height, shape.out_width, kThreads, stream, dy,
                index, scale, reinterpret_cast<float2*>(image_gradient), static_cast<unsigned>(shape.out_width));
  } else {
    launch_rows(bias_pool_relu_backward_kernel, images, pixels, kThreads, stream, dy, index, scale, image_gradient,
                shape);
  }
}

}  // namespace duet::cuda::kernels
