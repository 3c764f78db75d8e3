// The inner loops of the CPU backend: one source, compiled once per instruction set, chosen when the program starts.
//
// They work on raw pointers, not tensors. Of headers with inline functions their sources include only
// lib/backend/arithmetic.h: of another function the linker would keep one copy, perhaps with instructions that this
// machine lacks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lib/backend/arithmetic.h"
#include "lib/backend/average_pool.h"

namespace duet::cpu {

constexpr int kMostLeaves = 32;  // duet::kMostBlocks

/// Rows [begin, end) of each leaf and the additions that sum the leaves; mirrors duet::Blocks.
struct Leaves {
  const std::int64_t* ranges;  // begin, end pairs
  int count;
  const int* additions;  // destination, source pairs
  int addition_count;
  bool add_zero;
};

/// A matrix in memory: element (i, j) is p[i * row + j * column]. One of the two strides is 1.
struct Matrix {
  const float* p = nullptr;
  std::int64_t row = 0, column = 0;
};

/// c (m, n) = a (m, k) b (k, n), plus a bias for each column unless that is null.
struct Product {
  Matrix a = {}, b = {};
  float* c = nullptr;
  std::int64_t pitch = 0;  // of c: from one row to the next
  std::int64_t m = 0, n = 0, k = 0;
  const float* bias = nullptr;
  const Leaves* leaves = nullptr;  // of k; null: all of it is one leaf
};

/// Attention of one head: q (queries, depth), k (keys, depth), v (keys, values). `causal`: query i sees keys 0 to i.
struct Attention {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t queries = 0, keys = 0, depth = 0, values = 0;
  bool causal = false;
  float scale = 1;  // of the scores
};

struct PoolGeometry {
  std::int64_t height, width, out_height, out_width;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

using arithmetic::kNoGradient;

/// A 3x3 convolution with padding 1, bias, a 2x2 max-pool and relu. Images are blocked by channel_block channels and,
/// where not said otherwise, padded by one pixel of zeros on each side.
struct PooledConv {
  std::int64_t height, width;              // size of the image, both even
  std::int64_t in_channels, out_channels;  // multiples of channel_block
  bool blocked_output;                     // backward: the pooled outputs are blocked too, else plain
  float scale;                             // backward: factor of all gradients (dropout)
};

/// A convolution of images with few channels in the plain layout, padded already; its outputs are blocked by
/// channel_block channels.
struct PlainConv {
  std::int64_t in_channels, height, width;  // shape of the padded image
  std::int64_t out_channels, out_height, out_width;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w;
};

/// A convolution whose images, in and out, are blocked by channel_block channels.
struct BlockedConv {
  std::int64_t in_channels, height, width;
  std::int64_t out_channels, out_height, out_width;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

/// Rows of a batch (N, C, H, W) as batch norm walks over them. A group is `block` channels of one image, `run` numbers
/// without a gap; a channel alone where the layout is plain.
struct NormRows {
  std::int64_t count, pitch;  // rows, and numbers of a row
  std::int64_t groups, run;
  int block;
};

/// Numbers that batch norm computes at once: whole blocks of channels.
inline constexpr int kNormLanes = 16;

/// Constants of one group of channels, for each of kNormLanes numbers.
struct NormLanes {
  float factor[kNormLanes], shift[kNormLanes];  // y = x * factor + shift
  float mean[kNormLanes];
  // dx = ((x - mean) * slope + (dy - mean_dy)) * scale
  float slope[kNormLanes], mean_dy[kNormLanes], scale[kNormLanes];
};

/// An operand of a function of elements. One that repeats a number has only as many of it as the widest vector.
struct Operand {
  static constexpr int kRepeated = 16;
  const float* memory;
  bool repeats;
};

struct Kernels {
  const char* name;   // as people write it: "AVX-512"
  int channel_block;  // adjacent channels in the layout that suits this instruction set

  // elementwise, n elements
  void (*relu)(const float* x, float* y, std::int64_t n);
  void (*relu_backward)(const float* y, const float* dy, float* dx, std::int64_t n);
  void (*add)(const float* a, const float* b, float* y, std::int64_t n);
  void (*scale)(float* x, float factor, std::int64_t n);
  void (*mask_scale)(const float* x, const std::uint8_t* mask, float scale, float* y, std::int64_t n);
  /// dx = dy * scale where y, which relu and dropout made, is positive or NaN, else 0.
  void (*relu_dropout_backward)(const float* y, const float* dy, float scale, float* dx, std::int64_t n);
  /// y = the parts' sum by the tree (for a power of two) or in order; plus y's old value if `accumulate`.
  void (*sum_parts)(const float* const* parts, int count, bool accumulate, float* y, std::int64_t n);
  void (*sgd)(float* value, const float* gradient, float* momentum, std::int64_t n, float lr, float momentum_factor,
              float dampening, float weight_decay, bool nesterov, bool first);
  void (*adam)(float* value, const float* gradient, float* first, float* second, std::int64_t n,
               const arithmetic::AdamFactors& factors);

  /// y = f(a, b, c) with the same bits on every instruction set; y may be one of the operands.
  void (*pointwise)(Pointwise f, const Operand (&operands)[3], float* y, std::int64_t n);

  // rows of n numbers, with the same bits on every instruction set; the result may be one of the arguments
  void (*softmax)(const float* x, float* y, std::int64_t rows, std::int64_t n);
  void (*softmax_backward)(const float* y, const float* dy, float* dx, std::int64_t rows, std::int64_t n);
  void (*log_softmax)(const float* x, float* y, std::int64_t rows, std::int64_t n);
  void (*log_softmax_backward)(const float* y, const float* dy, float* dx, std::int64_t rows, std::int64_t n);

  // layer norm of rows of n numbers, with the same bits on every instruction set; weight (n) and bias (n) may be null
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t rows,
                     std::int64_t n);
  /// dweight and dbias = sums over the rows, one after the other; dx may be null.
  void (*layer_norm_backward)(const float* x, const float* weight, const float* dy, float eps, float* dx,
                              float* dweight, float* dbias, std::int64_t rows, std::int64_t n);

  // batch norm; `lanes`: of each group. Sums are (2, channels)
  /// The sums of x and of its squares.
  void (*norm_sums)(const NormRows& rows, const float* x, double* sums);
  /// `other` is added to the result, unless it is null; relu comes last.
  void (*norm_forward)(const NormRows& rows, const NormLanes* lanes, const float* x, const float* other, bool relu,
                       float* y);
  /// The sums of the gradient behind relu and of its products with x - mean. Where relu followed an addition, its
  /// result y decides, and the gradient goes to `passed`; else both are null.
  void (*norm_backward_sums)(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                             const float* y, float* passed, double* sums);
  /// `relu`: no addition was before it. Not `centred`: the statistics did not depend on x, and dx = dy * scale.
  void (*norm_backward)(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                        bool centred, float* dx);

  // pooling of one image (height, width, block) to (out_height, out_width, block)
  void (*max_pool)(const float* x, float* y, std::uint8_t* index, const PoolGeometry& g, int block);
  /// Adds dy to the places of the maxima; dx was set to zero.
  void (*max_pool_backward)(const float* dy, const std::uint8_t* index, float* dx, const PoolGeometry& g, int block);
  void (*avg_pool)(const float* x, float* y, const AveragePool& pool, int block);
  void (*avg_pool_backward)(const float* dy, float* dx, const AveragePool& pool, int block);
  /// relu of pooled values in place, and kNoGradient where the value is not positive.
  void (*relu_index)(float* y, std::uint8_t* index, std::int64_t n);
  /// dropout of pooled values in place, and kNoGradient where the mask is 0.
  void (*drop_index)(float* y, std::uint8_t* index, const std::uint8_t* mask, float scale, std::int64_t n);
  /// (pixels, block) to (block, pixels), floats and bytes; and back.
  void (*unblock)(const float* x, float* y, std::int64_t pixels, int block);
  void (*unblock_bytes)(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block);
  void (*block)(const float* x, float* y, std::int64_t pixels, int block);
  void (*block_bytes)(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block);
  /// Plain weights w (outs, ins, taps) to (outs / block, ins / block, taps, input, output), or with the last two the
  /// other way round.
  void (*block_weights)(const float* w, float* to, std::int64_t outs, std::int64_t ins, std::int64_t taps, int block,
                        bool outputs_last);
  /// Images (channels / block, pixels, block) to (pixels, channels), rounded to the nearest bf16 numbers; and floats
  /// back.
  void (*to_bf16_pixels)(const float* x, std::uint16_t* y, std::int64_t channels, std::int64_t pixels, int block);
  void (*from_pixels)(const float* x, float* y, std::int64_t channels, std::int64_t pixels, int block);
  /// Copies images (h, w, block) into ones with a border of one zero pixel, or back.
  void (*pad)(const float* x, float* padded, std::int64_t images, std::int64_t h, std::int64_t w, int block);
  void (*crop)(const float* padded, float* x, std::int64_t images, std::int64_t h, std::int64_t w, int block);

  /// Floats that winograd_weights writes, and of scratch memory that winograd_forward takes.
  std::int64_t (*winograd_weight_floats)(const PooledConv& g);
  std::int64_t (*winograd_scratch_floats)(const PooledConv& g);
  /// u = the plain weights w (out_channels, in_channels, 3, 3) as winograd_forward reads them.
  void (*winograd_weights)(const PooledConv& g, const float* w, float* u);
  /// One row: padded image x to pooled y and index, both blocked. Fetches the next row's image, without a border,
  /// into the cache.
  void (*winograd_forward)(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                           std::uint8_t* index, const float* next, float* scratch);

  /// One row: plain padded image x of few channels to pooled y and index, blocked; w (in_channels, 9, out_channels).
  void (*plain_pooled_forward)(const PooledConv& g, const float* w, const float* bias, const float* x, float* y,
                               std::uint8_t* index);
  std::int64_t (*plain_pooled_scratch_floats)(const PooledConv& g);
  /// dw (in_channels, 9, out_channels) and db = sums over `rows` rows; dy is blocked.
  void (*plain_pooled_backward_weights)(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                                        std::int64_t rows, float* dw, float* db, float* scratch);

  /// Bytes of scratch memory that nonzero_backward takes.
  std::int64_t (*nonzero_scratch_bytes)(const PooledConv& g);
  /// Walks nonzero gradients only: dw (out_channels, 9, in_channels) and db, summed over `rows` rows, and unless it is
  /// null dx by w (in_channels / channel_block, out_channels, 9, channel_block). x and dx have no border.
  void (*nonzero_backward)(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                           std::int64_t rows, const float* w, float* dx, float* dw, float* db, void* scratch);

  /// dw (out_channels, in_channels, kernel_h, kernel_w) and db = sums over `rows` rows.
  void (*plain_backward_weights)(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, float* dw,
                                 float* db);

  /// Floats of scratch memory that small_backward_weights takes.
  std::int64_t (*small_weights_scratch_floats)(const BlockedConv& g, const Leaves& leaves);
  /// The channel_block outputs from out_block * channel_block on of dw (out_channels, in_channels, kernel_h, kernel_w)
  /// = sums over rows as `leaves` says. Fast where the leaves' images are small.
  void (*small_backward_weights)(const BlockedConv& g, const float* x, const float* dy, const Leaves& leaves,
                                 std::int64_t out_block, float* dw, float* scratch);

  // dropout: n decisions of one row, 1 = keep; kept when a 16-bit number is at least `threshold`
  void (*dropout_mask)(std::uint8_t* mask, std::int64_t n, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                       std::uint32_t layer, std::uint32_t threshold);

  /// Bytes of scratch memory that multiply takes.
  std::int64_t (*product_scratch_bytes)(const Product& product);
  void (*multiply)(const Product& product, void* scratch);

  /// Bytes of scratch memory that the next two take.
  std::int64_t (*attention_scratch_bytes)(const Attention& head);
  /// weights (queries, keys) = softmax of the scores; y (queries, values).
  void (*attention)(const Attention& head, float* weights, float* y, void* scratch);
  /// dscores: room for (queries, keys).
  void (*attention_backward)(const Attention& head, const float* weights, const float* dy, float* dscores, float* dq,
                             float* dk, float* dv, void* scratch);

  /// Bytes of scratch memory that linear takes.
  std::int64_t (*linear_forward_scratch_bytes)(std::int64_t n, std::int64_t in, std::int64_t out);
  // linear: x (n, in), w (out, in), y (n, out)
  void (*linear)(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
                 std::int64_t out, void* scratch);
  /// Bytes of scratch memory that the next two take, which skip zeros of dy.
  std::int64_t (*nonzero_linear_scratch_bytes)(std::int64_t n, std::int64_t out);
  void (*nonzero_linear_data)(const float* dy, const float* w, float* dx, std::int64_t n, std::int64_t in,
                              std::int64_t out, void* scratch);
  /// Columns [begin, end) of dw (out, in), summed over rows as `leaves` says.
  void (*nonzero_linear_weights)(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out,
                                 std::int64_t begin, std::int64_t end, const Leaves& leaves, void* scratch);
  /// db (columns) = sum of the rows of dy (n, columns).
  void (*sum_rows)(const float* dy, float* db, std::int64_t columns, const Leaves& leaves);

  /// Multiplies and adds in registers only, `rounds` times a few chains of numbers[0] * x + numbers[1]; the result goes
  /// to numbers[2]. Returns the number of floating-point operations: over its time, the peak of one core.
  std::int64_t (*fma_peak)(std::int64_t rounds, float* numbers);

  // Convolutions by tiles that multiply bf16 numbers, to which floats are rounded, and add in float; null where the
  // processor has none. Channels in and out are multiples of 32, images are blocked by 16.
  /// Images to = the convolution of images `from` with plain weights w, or with `backward` the gradient of its images
  /// from that of its result. A row does not depend on the others.
  std::int64_t (*tiled_conv_scratch_bytes)(const BlockedConv& g, bool backward, std::int64_t rows);
  void (*tiled_conv)(const BlockedConv& g, bool backward, const float* from, const float* w, std::int64_t rows,
                     float* to, void* scratch);
  /// The images of one leaf as tiled_backward_weights reads them, and how many words they take.
  std::int64_t (*paired_words)(std::int64_t channels, std::int64_t pixels, std::int64_t rows);
  void (*pair_images)(const float* x, std::int64_t channels, std::int64_t pixels, std::int64_t rows, std::uint32_t* to);
  std::int64_t (*tiled_weights_scratch_bytes)(const BlockedConv& g, const Leaves& leaves);
  /// Inputs [begin, begin + 32) of dw (out_channels, in_channels, kernel_h, kernel_w) = sums over rows as `leaves`
  /// says; x and dy: the leaves one after the other.
  void (*tiled_backward_weights)(const BlockedConv& g, const std::uint32_t* x, const std::uint32_t* dy,
                                 const Leaves& leaves, std::int64_t begin, float* dw, void* scratch);
};

// Macros that declare and fill in the tables: a new kernel is a member of Kernels and a name in this list.
// clang-format off

/// X of each kernel that every instruction set has, in the order of Kernels.
#define DUET_KERNELS(X)                                                                                              \
  X(relu) X(relu_backward) X(add) X(scale) X(mask_scale) X(relu_dropout_backward) X(sum_parts) X(sgd) X(adam) X(pointwise) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(layer_norm) X(layer_norm_backward)          \
  X(norm_sums) X(norm_forward) X(norm_backward_sums) X(norm_backward) X(max_pool) X(max_pool_backward) X(avg_pool)   \
  X(avg_pool_backward) X(relu_index) X(drop_index) X(unblock) X(unblock_bytes) X(block) X(block_bytes)               \
  X(block_weights) X(to_bf16_pixels) X(from_pixels) X(pad) X(crop) X(winograd_weight_floats)                         \
  X(winograd_scratch_floats) X(winograd_weights) X(winograd_forward) X(plain_pooled_forward)                         \
  X(plain_pooled_scratch_floats) X(plain_pooled_backward_weights) X(nonzero_scratch_bytes) X(nonzero_backward)       \
  X(plain_backward_weights) X(small_weights_scratch_floats) X(small_backward_weights) X(dropout_mask)                \
  X(product_scratch_bytes) X(multiply) X(attention_scratch_bytes) X(attention) X(attention_backward)                 \
  X(linear_forward_scratch_bytes) X(linear)                                                   \
  X(nonzero_linear_scratch_bytes) X(nonzero_linear_data) X(nonzero_linear_weights) X(sum_rows) X(fma_peak)

/// X of those that only sets with tiles have, which follow in Kernels.
#define DUET_TILED_KERNELS(X)                                                                     \
  X(tiled_conv_scratch_bytes) X(tiled_conv) X(paired_words) X(pair_images)                        \
  X(tiled_weights_scratch_bytes) X(tiled_backward_weights)

/// X of each kernel that AMX has of its own.
#define DUET_AMX_KERNELS(X)                                                                       \
  X(winograd_weight_floats) X(winograd_scratch_floats) X(winograd_weights) X(winograd_forward)    \
  X(linear_forward_scratch_bytes) X(linear) DUET_TILED_KERNELS(X)
// clang-format on

/// Declares a kernel in the namespace of an instruction set.
#define DUET_DECLARE_KERNEL(name) std::remove_pointer_t<decltype(Kernels::name)> name;

namespace generic {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}

/// The best set for this machine, or the one that DUET_ISA names (amx, avx512, avx2, generic). Throws UsageError when
/// the machine lacks the named one, or its operating system refuses it.
const Kernels& kernels();

/// Whether this machine multiplies bf16 numbers, and kernels() is a set that goes with it.
bool has_bf16();

}  // namespace duet::cpu
