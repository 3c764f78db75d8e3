// duet's own kernels. Each function enqueues its kernels on a stream of the thread's current device.
//
// They take raw device pointers, not tensors; n = 0 enqueues nothing. The stream comes last. Pointers to
// floats need a float's alignment only: parameters are views at any place of a flat buffer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/average_pool.h"
#include "lib/backend/pointwise.h"

namespace duet::cuda::kernels {

// --- elementwise.cu: n elements ---
void relu(const float* x, float* y, std::int64_t n, cudaStream_t stream);
void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n, cudaStream_t stream);
void add(const float* a, const float* b, float* y, std::int64_t n, cudaStream_t stream);
void scale(float* x, float factor, std::int64_t n, cudaStream_t stream);
void fill(float* x, float value, std::int64_t n, cudaStream_t stream);
/// y = x * (mask ? factor : 0)
void mask_scale(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n, cudaStream_t stream);

// --- pointwise.cu ---

/// Memory of one tensor of a walk; for an input, null: `number` in its place.
struct WalkInputs {
  const float *a, *b, *c;
  float number;
};
/// y = f(a, b, c) at every place of the walk over a, b, c and y.
void pointwise(Pointwise f, const Walk& walk, const WalkInputs& inputs, float* y, cudaStream_t stream);
/// y[i] = the sum, over the places of `summed`, of x from the i-th place of `kept` on: walks over x alone.
void sum(const Walk& kept, const Walk& summed, const float* x, float* y, cudaStream_t stream);

// --- pointwise.cu: rows of a table (rows, columns) ---
/// y[i] = row indices[i]; NaN for an index outside [0, rows).
void gather_rows(const float* table, std::int64_t rows, const std::int64_t* indices, std::int64_t count, int columns,
                 float* y, cudaStream_t stream);
/// dtable[r] = the sum of dy[i] where indices[i] is r. Every thread of a row looks at all indices.
void sum_gathered_rows(const float* dy, const std::int64_t* indices, std::int64_t count, float* dtable,
                       std::int64_t rows, int columns, cudaStream_t stream);

// --- elementwise.cu: batches of images ---

/// Rows of row_bytes > 0 bytes, with a label each or null.
struct LabelledRows {
  const std::uint8_t* bytes;
  std::int64_t row_bytes;
  const std::int64_t* labels;
};
/// y[i] = row indices[i], every byte as (byte / 255 - mean) / deviation; picked[i] = its label, unless picked is null.
void gather_images(const LabelledRows& rows, const std::int64_t* indices, std::int64_t n, float mean, float deviation,
                   float* y, std::int64_t* picked, cudaStream_t stream);

// --- elementwise.cu: counters ---
void set_counter(std::uint64_t* counter, std::uint64_t value, cudaStream_t stream);
void advance(std::uint64_t* counter, std::uint64_t steps, cudaStream_t stream);

// --- elementwise.cu: dropout ---

/// A draw whose step is known when the kernel runs: that of `draw`, plus *counter unless that is null.
struct StepDraw {
  arithmetic::DropoutDraw draw;
  const std::uint64_t* counter;
};

/// mask (rows, columns): 1 to keep, 0 to drop.
void dropout_mask(std::uint8_t* mask, std::int64_t rows, std::int64_t columns, const StepDraw& draw,
                  cudaStream_t stream);

// --- update.cu: n elements ---
struct SGDFactors {
  float lr, momentum, dampening, weight_decay;
  bool nesterov, first;
};
/// momentum may be null.
void sgd(float* value, const float* gradient, float* momentum, std::int64_t n, const SGDFactors& factors,
         cudaStream_t stream);
void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& factors, cudaStream_t stream);

/// Partial sums that sum_of_squares writes.
inline constexpr int kSquarePartials = 256;
/// The sum of the kSquarePartials doubles is that of the squares of x.
void sum_of_squares(const float* x, std::int64_t n, double* partials, cudaStream_t stream);

// --- update.cu: n elements, sums over devices ---
inline constexpr int kMaxParts = 64;
struct Parts {
  const float* at[kMaxParts];
};
struct Sums {
  float* at[kMaxParts];
};
/// y = the parts' sum by the tree (for a power of two) or in order; plus y's old value if `accumulate`.
void sum_parts(const Parts& parts, int count, bool accumulate, float* y, std::int64_t n, cudaStream_t stream);
/// Each of `count` sums = the sum of `count` parts as above. The current device can access all of them, wherever they
/// lie; sums.at[i] may be parts.at[i].
void all_reduce(const Parts& parts, const Sums& sums, int count, std::int64_t n, cudaStream_t stream);

// --- pool.cu ---

/// Windows over `images` images of (height, width) pixels.
struct PoolShape {
  std::int64_t images;
  int height, width, out_height, out_width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

/// index (u8): place of the maximum inside its window, first in row-major order.
void max_pool_forward(const float* x, float* y, std::uint8_t* index, const PoolShape& shape, cudaStream_t stream);
/// Every element of dx is written.
void max_pool_backward(const float* dy, const std::uint8_t* index, float* dx, const PoolShape& shape,
                       cudaStream_t stream);

// --- pool.cu: averages, over `images` images ---
void avg_pool_forward(const float* x, float* y, const AveragePool& pool, std::int64_t images, cudaStream_t stream);
/// Every element of dx is written.
void avg_pool_backward(const float* dy, float* dx, const AveragePool& pool, std::int64_t images, cudaStream_t stream);

// --- conv_epilogue.cu: bias, pooling, relu and dropout of a convolution ---

/// y (images * channels, pixels) += bias of the channel.
void add_channel_bias(float* y, const float* bias, std::int64_t images, int channels, std::int64_t pixels,
                      cudaStream_t stream);
/// db = sum of dy (images, channels, pixels) over images and pixels, times scale. With an index, elements where it is
/// 255 are left out.
void channel_bias_gradient(const float* dy, const std::uint8_t* index, float scale, float* db, std::int64_t images,
                           int channels, std::int64_t pixels, cudaStream_t stream);

/// Windows that tile images of (height, width) pixels from the top left corner, without overlap or padding.
struct TiledPool {
  std::int64_t rows;
  int channels, height, width, out_height, out_width, kernel_h, kernel_w;
};

/// y = dropout(relu(max_pool(image + bias))); index: place of the maximum, 255 where no gradient passes. Without
/// dropout `draw` is null.
void bias_pool_relu_forward(const float* image, const float* bias, float* y, std::uint8_t* index,
                            const TiledPool& shape, const StepDraw* draw, float scale, cudaStream_t stream);
/// The gradient of the image: dy * scale at the places of index, 0 elsewhere. Every element is written.
void bias_pool_relu_backward(const float* dy, const std::uint8_t* index, float scale, float* image_gradient,
                             const TiledPool& shape, cudaStream_t stream);

// --- conv_one_channel.cu: convolutions of images of one channel with 3x3 filters, stride 1, and 2x2 pooling ---

/// Sizes of the images, their padding, and the pool's output; `rounds`: the products' operands to bfloat16.
struct OneChannelConv {
  int rows, channels, height, width, pad_h, pad_w, out_height, out_width;
  bool rounds;
};
/// y (rows, channels, out_height, out_width) = relu(max_pool(conv(x, w) + bias)); index as bias_pool_relu_forward's.
void conv_one_channel_forward(const float* x, const float* w, const float* bias, float* y, std::uint8_t* index,
                              const OneChannelConv& shape, cudaStream_t stream);
/// Partial sums that conv_one_channel_backward needs, in floats.
std::int64_t conv_one_channel_partials(const OneChannelConv& shape);
/// dw (channels, 3, 3) and, unless it is null, db (channels).
void conv_one_channel_backward(const float* dy, const std::uint8_t* index, const float* x, float* partials, float* dw,
                               float* db, const OneChannelConv& shape, cudaStream_t stream);

// --- conv3x3.cu: convolutions with 3x3 filters and stride 1 on tensor cores ---

/// An image, or, where an index is given, the gradient of one whose 2x2 pooled gradient `values` are: scale times these
/// at the places of the index, as bias_pool_relu_backward gives.
struct ConvImage {
  const float* values;
  const std::uint8_t* index;
  float scale;
};
/// Sizes: of images (rows, channels, height, width) and their padding; outputs: channels of the result. The products'
/// operands are rounded to TF32, `rounds`: to bfloat16; sums are floats.
struct Conv3x3 {
  int rows, channels, outputs, height, width, pad_h, pad_w;
  bool rounds;
  DUET_HOST_DEVICE int out_height() const { return height + 2 * pad_h - 2; }
  DUET_HOST_DEVICE int out_width() const { return width + 2 * pad_w - 2; }
};
/// y (rows, outputs, height + 2 pad_h - 2, width + 2 pad_w - 2), with filters w (outputs, channels, 3, 3); transposed:
/// w (channels, outputs, 3, 3) from the last tap to the first, which makes a gradient of images of that of results,
/// then also given by that of their pool.
void conv3x3(const ConvImage& image, const float* w, bool transposed, float* y, const Conv3x3& shape,
             cudaStream_t stream);
/// y and index of conv_pool_relu_forward, of images with an even height and width of the result.
void conv3x3_pool_forward(const float* x, const float* w, const float* bias, float* y, std::uint8_t* index,
                          const StepDraw* draw, float scale, const Conv3x3& shape, cudaStream_t stream);
/// Partial sums that conv3x3_weights needs, in floats.
std::int64_t conv3x3_partials(const Conv3x3& shape, bool pooled);
/// dw (outputs, channels, 3, 3) of images x and the gradient of y. Where x is not finite, all taps of a filter may be
/// NaN.
void conv3x3_weights(const float* x, const ConvImage& dy, float* partials, float* dw, const Conv3x3& shape,
                     cudaStream_t stream);

// --- linear.cu: x (rows, in), w (out, in), y (rows, out) ---

/// Up to kMostOutputs outputs; `rounds`: the products' operands to bfloat16.
inline constexpr int kMostOutputs = 32;
struct SmallLinear {
  std::int64_t rows;
  int in, out;
  bool rounds;
};
/// y = x w^T + bias, or its log_softmax with the bits of log_softmax_forward; bias may be null.
void small_linear_forward(const float* x, const float* w, const float* bias, float* y, bool log_softmax,
                          const SmallLinear& shape, cudaStream_t stream);
/// dx, dw and db, or null; db only where dw is.
void small_linear_backward(const float* dy, const float* x, const float* w, float* dx, float* dw, float* db,
                           const SmallLinear& shape, cudaStream_t stream);

// --- linear.cu: what stands around cuBLAS ---

/// y (rows, columns) += bias.
void add_row_bias(float* y, const float* bias, std::int64_t rows, int columns, cudaStream_t stream);
/// db = sum of the rows of dy (rows, columns).
void sum_rows(const float* dy, float* db, std::int64_t rows, int columns, cudaStream_t stream);
/// y (rows, columns) = dropout(relu(y + bias)). bias may be null; without dropout `draw` is.
void bias_relu_dropout_forward(float* y, const float* bias, std::int64_t rows, int columns, const StepDraw* draw,
                               float scale, cudaStream_t stream);
/// dx = dy * scale where y (rows, columns), the output of the above, is positive, else 0; db = sum of the rows of dx,
/// unless it is null.
void bias_relu_dropout_backward(const float* dy, const float* y, float scale, float* dx, float* db, std::int64_t rows,
                                int columns, cudaStream_t stream);
/// The nearest bfloat16 of each value: its 16 bits, or as a float.
void to_bfloat16(const float* x, std::uint16_t* y, std::int64_t count, cudaStream_t stream);
void round_to_bfloat16(const float* x, float* y, std::int64_t count, cudaStream_t stream);

// --- loss.cu: x (rows, classes), labels i64 (rows) ---

/// Lies in pinned host memory, one per device. A kernel that meets a label outside [0, classes) fills it in and sets
/// `seen`, unless it is set; the host reads it after waiting for the device. Kernels of a device run one after the
/// other.
struct LabelFault {
  int seen;
  std::int64_t label, row, classes;
};

/// y = log_softmax(x + bias); bias (classes) may be null, and y may be x.
void log_softmax_forward(const float* x, const float* bias, float* y, std::int64_t rows, int classes,
                         cudaStream_t stream);
void log_softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, int classes,
                          cudaStream_t stream);
/// The gradient that log_softmax_nll_backward gives for a dloss of 1.
struct LogitGradient {
  float* dx;  // null: not computed
  float factor;
};
/// loss = -sum x[i, label i] * factor; nan and a fault when a label is out of bounds. For the gradient x is
/// log_softmax's output.
void nll_forward(const float* x, const std::int64_t* labels, float factor, float* loss, const LogitGradient& gradient,
                 std::int64_t rows, int classes, LabelFault* fault, cudaStream_t stream);
/// dx = -dloss * factor at the labels, else 0. Labels out of bounds are ignored.
void nll_backward(const float* dloss, const std::int64_t* labels, float factor, float* dx, std::int64_t rows,
                  int classes, cudaStream_t stream);
/// dx = (exp(y) - one_hot(labels)) * *dloss * factor: of nll and the log_softmax that made y. 0 in rows whose label is
/// out of bounds.
void log_softmax_nll_backward(const float* dloss, const float* y, const std::int64_t* labels, float factor, float* dx,
                              std::int64_t rows, int classes, cudaStream_t stream);
/// Partial sums that mse_forward may need, in floats.
inline constexpr int kMsePartials = 512;
/// loss = sum (x - target)^2 * factor.
void mse_forward(const float* x, const float* target, float factor, float* loss, float* partials, std::int64_t count,
                 cudaStream_t stream);
/// dx = 2 * factor * dloss * (x - target).
void mse_backward(const float* dloss, const float* x, const float* target, float factor, float* dx, std::int64_t count,
                  cudaStream_t stream);
/// found = number of rows whose entry at the label is among the k first in the order of arithmetic::stands_before.
void count_in_top(const float* x, const std::int64_t* labels, std::int64_t k, std::int64_t* found, std::int64_t rows,
                  int classes, cudaStream_t stream);

// --- loss.cu: softmax, x, y (rows, classes), labels i64 (rows) ---
void softmax_forward(const float* x, float* y, std::int64_t rows, int classes, cudaStream_t stream);
void softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, int classes, cudaStream_t stream);
/// Partial sums that add_sum needs, in floats.
inline constexpr int kSumPartials = 256;
/// total += factor * sum of x.
void add_sum(const float* x, float factor, float* total, float* partials, std::int64_t count, cudaStream_t stream);
/// dx of Backend::smoothed_nll_backward; 0 in rows whose label is out of bounds.
void smoothed_nll_backward(const float* dloss, const float* y, const std::int64_t* labels, float smoothing,
                           float factor, float* dx, std::int64_t rows, int classes, cudaStream_t stream);

// --- batch_norm.cu: over rows and pixels of x (rows, channels, pixels) ---

struct BatchNormShape {
  std::int64_t rows;
  int channels;
  std::int64_t pixels;
};

/// training: mean and inverse_std are the batch's and running_* move by `momentum`; else they come from running_*.
/// `residual` is added to the result, unless it is null; relu comes last.
void batch_norm_forward(const float* x, const float* residual, const float* weight, const float* bias,
                        float* running_mean, float* running_var, float* mean, float* inverse_std, float* y,
                        const BatchNormShape& shape, bool training, bool relu, float momentum, float eps,
                        cudaStream_t stream);
/// dx may be null. y: of relu, null without one. dresidual may be null.
void batch_norm_backward(const float* x, const float* y, const float* dy, const float* weight, const float* mean,
                         const float* inverse_std, float* dx, float* dresidual, float* dweight, float* dbias,
                         const BatchNormShape& shape, bool training, cudaStream_t stream);

}  // namespace duet::cuda::kernels
