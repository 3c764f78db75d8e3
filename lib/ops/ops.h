// The operators but the losses (losses.h). A result is on the tape if an argument asks for gradients. Until backward
// the tape holds the memory of arguments and results, no copies, and does not notice writes: where a parameter is
// updated between forward and backward, the gradients mix its old and its new value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet {
class Mt19937;
}

namespace duet::ops {

/// One side of an operator: a tensor or a number.
struct Operand {
  Operand(const Variable& x) : tensor(x) {}          // NOLINT(google-explicit-constructor)
  Operand(const Tensor& x) : tensor(x) {}            // NOLINT(google-explicit-constructor)
  Operand(double x) : number(x), is_number(true) {}  // NOLINT(google-explicit-constructor)
  Variable tensor;
  double number = 0;
  bool is_number = false;
};

/// Element by element; `a + b`, `a - b`, `a * b`, `a / b` are the same. Dimensions of size 1, and those that one side
/// lacks in front, are repeated as in PyTorch: (N, T, C) with (T, C), (C) or (N, 1, 1). Throws ShapeError naming both
/// shapes where other sizes differ.
///
/// The gradient of a side whose dimensions were repeated is the sum over them. Where that are the rows of a batch, as
/// for a parameter, the sum has the same bits on any number of devices; but not the gradients of what that side was
/// computed from, unless an operator passes them on unchanged: (w * v) + x sums first and multiplies then, on each
/// device. Of two sides with one row each, the one without a stamp is taken for a parameter.
Variable add(const Operand& a, const Operand& b);
Variable sub(const Operand& a, const Operand& b);
Variable mul(const Operand& a, const Operand& b);
Variable div(const Operand& a, const Operand& b);

// Functions of each element, any shape; values and gradients as PyTorch's (aten/src/ATen/native/Activation.cpp), NaN
// and infinity included, but for gelu above 1.7e38: x here, infinity or NaN in PyTorch's vector code.
Variable exp(const Variable& x);
/// The natural logarithm.
Variable log(const Variable& x);
Variable sqrt(const Variable& x);
/// 1 / (1 + exp(-x)).
Variable sigmoid(const Variable& x);
Variable tanh(const Variable& x);
/// x * (1 + erf(x / sqrt(2))) / 2, PyTorch's default form.
Variable gelu(const Variable& x);
/// x where it is positive, else x * negative_slope; so is its gradient.
Variable leaky_relu(const Variable& x, double negative_slope = 0.01);

/// The parts one after the other along dimension 1: (N, C_i, ...) -> (N, sum of C_i, ...). One part or more, which
/// agree in all other dimensions.
Variable concat(std::span<const Variable> parts);
inline Variable concat(std::initializer_list<Variable> parts) {
  return concat(std::span<const Variable>(parts.begin(), parts.size()));
}

/// max(x, 0), any shape; the derivative at 0 is 0. A NaN stays one and passes its gradient, as in PyTorch.
Variable relu(const Variable& x);

/// The sum, or the mean, over some dimensions, negative ones from the end; over all if none are given. They are left
/// out of the result's shape, or with `keepdim` have size 1. Over no elements the sum is 0 and the mean NaN.
///
/// Dimension 0 of a shard (lib/tensor.h): a mean over it is that of the shard's own rows. As a loss its gradient is
/// then weighted by the shard's part of the batch, so all rows count alike, to rounding; the losses of losses.h have
/// equal bits on any number of devices. A sum over it is a sum for each shard, and gradients of those are averaged:
/// divide by rows, or take a mean.
Variable sum(const Variable& x, std::span<const int> dimensions = {}, bool keepdim = false);
Variable mean(const Variable& x, std::span<const int> dimensions = {}, bool keepdim = false);
inline Variable sum(const Variable& x, std::initializer_list<int> dimensions, bool keepdim = false) {
  return sum(x, std::span(dimensions.begin(), dimensions.size()), keepdim);
}
inline Variable mean(const Variable& x, std::initializer_list<int> dimensions, bool keepdim = false) {
  return mean(x, std::span(dimensions.begin(), dimensions.size()), keepdim);
}

/// The elements of x in plain order in another shape, of which one size may be -1: what is left. Dimension 0 should
/// stay the rows of the batch: shape()[0] or -1, as a number would hold on one number of devices only. Copies only if x
/// is not plain.
Variable reshape(const Variable& x, std::initializer_list<std::int64_t> sizes);

/// (N, ...) -> (N, the rest multiplied), in plain order. Copies only if x is not plain.
Variable flatten(const Variable& x);

/// x with two dimensions exchanged, negative ones from the end; a copy.
Variable transpose(const Variable& x, int first, int second);

/// The part of x from `begin` up to `end` in a dimension, of which -1 is the last; copies but for dimension 0. Throws
/// ShapeError out of range.
Variable slice(const Variable& x, int dimension, std::int64_t begin, std::int64_t end);

/// x (N, C, H, W) in the plain layout; x itself if it is plain already.
Variable to_plain(const Variable& x);
/// x (N, C, H, W) in another layout of its backend.
Variable to_layout(const Variable& x, Layout layout);

/// Throws UsageError unless 0 <= p < 1; `op` is the operator's name, for the message.
void require_probability(const char* op, double p);

/// x with each element zeroed with probability key.p and the others scaled by 1 / (1 - p); x (N, ...) in plain order.
/// The decision for an element depends on the key, the row's number in the global batch and its place in the row only.
Variable dropout(const Variable& x, const DropoutKey& key);

/// Dropout by PyTorch's stream of random numbers: two words per element in memory order (semantics of aten bernoulli_
/// without MKL). The result depends on how the batch is split.
Variable dropout(const Variable& x, float p, Mt19937& generator);

/// x w^T + b: x (N, ..., I), w (O, I), b (O) or undefined -> (N, ..., O).
Variable linear(const Variable& x, const Variable& w, const Variable& b);

/// The matrix products a b: a (..., M, K) and b (..., K, P) with equal dimensions in front, or b (K, P) for all of a's
/// matrices -> (..., M, P).
Variable matmul(const Variable& a, const Variable& b);

/// exp(x) / sum(exp(x)) along a dimension: x (N, C) or of more dimensions, the result of x's shape. Where there is a
/// NaN or +infinity, or -infinity only, it is NaN, as in PyTorch.
Variable softmax(const Variable& x, int dimension = 1);

/// x - log(sum(exp(x))) along a dimension, shapes as softmax's.
Variable log_softmax(const Variable& x, int dimension = 1);

/// Cross-correlation: x (N, C, H, W), w (K, C / groups, R, S), b (K) or undefined -> (N, K, P, Q). Output channel k
/// reads the input channels of its group only: those from k / (K / groups) * (C / groups) on, as in PyTorch. Throws
/// ShapeError naming both shapes.
Variable conv2d(const Variable& x, const Variable& w, const Variable& b, const Window2d& window,
                std::int64_t groups = 1);

/// The gradient of conv2d's input, as torch.nn.functional.conv_transpose2d: x (N, C, H, W), w (C, K / groups, R, S), b
/// (K) or undefined -> (N, K, P, Q), P = (H - 1) * stride - 2 * padding + R + output_padding, and Q likewise;
/// output_padding is less than the strides. Throws ShapeError naming both shapes.
Variable conv_transpose2d(const Variable& x, const Variable& w, const Variable& b, const Window2d& window,
                          std::int64_t output_padding = 0, std::int64_t groups = 1);

/// x (N, C, H, W) -> (N, C, P, Q); sizes are floored (7 -> 3). Ties send the gradient to the first maximum in row-major
/// order. Windows of at most 254 pixels, padding of at most half the kernel.
Variable max_pool2d(const Variable& x, const Window2d& window);

/// The mean of each window: x (N, C, H, W) -> (N, C, P, Q), sizes as max_pool2d's. Zeros of the padding count as pixels
/// with `count_include_pad`, else a window at the border is divided by its pixels in the image, as in PyTorch. Padding
/// of at most half the kernel.
Variable avg_pool2d(const Variable& x, const Window2d& window, bool count_include_pad = true);

/// x (N, C, H, W) -> (N, C, height, width): output (p, q) is the mean of rows floor(p * H / height) up to
/// ceil((p + 1) * H / height), and of such columns, as torch.nn.AdaptiveAvgPool2d; (1, 1) is the mean of the image. x
/// itself if it has this size.
Variable adaptive_avg_pool2d(const Variable& x, std::int64_t height, std::int64_t width);

/// (x - mean) / sqrt(variance + eps) * weight + bias for each channel: x (N, C, H, W); weight, bias, running_mean,
/// running_var (C). In training the statistics are the batch's (its rows on this device alone, unless options.others is
/// set), and the running ones are updated in place, the variance by its unbiased estimate, as in torch.nn.BatchNorm2d.
/// Adds `residual`, of x's shape, if it is given, and then applies relu() if options.relu is set, in one operator: the
/// same values and gradients as by add() and relu(), on CPU to the last bit, with less memory traffic.
Variable batch_norm2d(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                      const Tensor& running_var, const BatchNorm2dOptions& options, const Variable& residual = {});

/// Rows of a table (V, C) by indices i64 (N, ...) -> (N, ..., C), which have the stamp of the batch. The gradient of a
/// row is summed as those of all parameters. An index outside [0, V) throws ShapeError on CPU, and makes NaN on CUDA,
/// where backward looks at all indices for each row of the table: V * N * ... is its cost.
Variable embedding(const Variable& table, const Tensor& indices);

/// (x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, of this shape, which are not all of x;
/// weight and bias, of this shape, may be undefined. As torch.nn.functional.layer_norm; one kernel on CPU, and on CUDA
/// made of the operators above.
Variable layer_norm(const Variable& x, const Shape& normalised, const Variable& weight, const Variable& bias,
                    double eps = 1e-5);

/// softmax(query key^T / sqrt(D)) value: query (N, ..., T, D), key (N, ..., S, D), value (N, ..., S, E) ->
/// (N, ..., T, E). With `causal` query i sees keys 0 to i. As torch.nn.functional.scaled_dot_product_attention, but for
/// a query of which all scores are -infinity: NaN, as softmax's, where PyTorch gives 0. Of the operators above.
Variable scaled_dot_product_attention(const Variable& query, const Variable& key, const Variable& value,
                                      bool causal = false);

// Fused operators: nn::chain() runs neighbouring layers by them.

/// dropout(relu(max_pool2d(conv2d(x, w, b)))) in one operator: the same values and gradients as the four operators,
/// with less memory traffic. x (N, C, H, W), w (K, C, R, S), b (K) -> (N, K, P, Q), plain if `plain_output`, else in
/// the layout that the backend's next convolution likes. Pool windows must tile: stride = kernel, no padding, at most
/// 254 pixels. With op.dropout.p = 0 nothing is dropped.
///
/// Numbers that are not finite: where dropout drops, a gradient is stopped even if it is infinite or NaN; the four
/// operators make NaN of it. The CPU's own kernels (3x3 convolutions, 2x2 pools) differ in more. A window that has such
/// a number among the 4x4 pixels below it, and a channel that has such a weight, may be NaN where the four operators
/// give another value, but is never finite where theirs is not. Gradients leave out products with outputs that relu or
/// dropout stopped, so dx and dw may be finite where zero times infinity makes the four operators' NaN, or the reverse.
/// A CheckFinite reports all of these: the image, weight, bias or gradient itself.
Variable conv_pool_relu(const Variable& x, const Variable& w, const Variable& b, const ConvPoolRelu& op,
                        bool plain_output = false);
/// Whether conv_pool_relu takes this pool: its windows tile.
bool pool_tiles(const Window2d& pool);

/// dropout(relu(linear(x, w, b)), key) in one operator: the same values and gradients as the three operators, on CPU to
/// the last bit, without passes of their own over the activations. x (N, I), w (O, I), b (O) or undefined -> (N, O).
/// With key.p = 0 nothing is dropped.
///
/// Two gradients differ from those of the three operators where dropout drops and numbers are not finite: an output
/// that is NaN (of a sum that is NaN or infinite) passes its gradient times the scale, not times 0; and a gradient that
/// is not finite becomes 0, not NaN. While a CheckFinite lives the three run one by one: relu would hide a sum that is
/// -infinity.
Variable linear_relu_dropout(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key);

/// log_softmax(linear(x, w, b)) in one operator: the same values and gradients, on CPU to the last bit, and the same
/// tape; the logits are not kept. x (N, I), w (C, I), b (C) or undefined -> (N, C). While a CheckFinite lives the two
/// run one by one, so that its error names the right one.
Variable linear_log_softmax(const Variable& x, const Variable& w, const Variable& b);

}  // namespace duet::ops

namespace duet {

inline Variable operator+(const Variable& a, const ops::Operand& b) { return ops::add(a, b); }
inline Variable operator+(double a, const Variable& b) { return ops::add(a, b); }
inline Variable operator-(const Variable& a, const ops::Operand& b) { return ops::sub(a, b); }
inline Variable operator-(double a, const Variable& b) { return ops::sub(a, b); }
inline Variable operator-(const Variable& a) { return ops::mul(a, -1.0); }
inline Variable operator*(const Variable& a, const ops::Operand& b) { return ops::mul(a, b); }
inline Variable operator*(double a, const Variable& b) { return ops::mul(a, b); }
inline Variable operator/(const Variable& a, const ops::Operand& b) { return ops::div(a, b); }
inline Variable operator/(double a, const Variable& b) { return ops::div(a, b); }

}  // namespace duet
