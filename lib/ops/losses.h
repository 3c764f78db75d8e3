// Losses: means over the rows of the batch.
//
// The rows of a stamped shard (lib/tensor.h) are part of a larger global batch. Then the value is the mean over the
// shard's own rows, for display, while the gradient is the shard's share of the gradient of the global mean: it
// is divided by the global number of rows. So gradients of shards are added up, and their sum has the bits of the
// whole batch. The losses throw UsageError for more rows than the stamp's batch has.
#pragma once

#include <cstdint>
#include <span>

#include "lib/autograd/variable.h"
#include "lib/tensor.h"

namespace duet::ops {

/// -mean of x[i, labels[i]]: x (N, C) log-probabilities, labels i64 (N) -> scalar; or (N, ..., C) and (N, ...), classes
/// last, where PyTorch has them in dimension 1. Throws ShapeError for a label outside [0, C). An empty batch gives nan,
/// as in PyTorch. Where x is log_softmax's own result, backward goes from the labels to log_softmax's argument in one
/// kernel, and in none at all where it starts at this loss, from 1: that gradient is made with the value.
Variable nll_loss(const Variable& x, const Tensor& labels);

/// nll_loss of log_softmax(x), with label smoothing as torch.nn.CrossEntropyLoss: x (N, C) logits, labels i64 (N),
/// or more dimensions as nll_loss -> scalar, the mean over rows of -sum_c t_c log_softmax(x)_c, where t is
/// label_smoothing / C, and at the label 1 - label_smoothing more. Throws UsageError unless 0 <= label_smoothing <= 1,
/// ShapeError for a label outside [0, C).
Variable cross_entropy(const Variable& x, const Tensor& labels, double label_smoothing = 0);

enum class Reduction { mean, sum };

/// Options of the two losses above, named as PyTorch's.
struct LabelOptions {
  double label_smoothing = 0;        // of cross_entropy; not with weights
  std::int64_t ignore_index = -100;  // rows with this label count nothing
  Tensor weight{};                   // (C) f32: how much rows of each class count; undefined: 1
  Reduction reduction = Reduction::mean;
};

/// As above. The mean divides by the sum of the weights of the labels that count, in backward of those of all ranks,
/// which exchange it: so gradients have equal bits on any number of devices. The value is over the shard's own rows,
/// NaN if none counts. Gradients of a sum add up over ranks if batches have a loader's stamp; without one,
/// GradientRule::rows weights those of each rank by its share of the rows. The host reads the labels. Throws UsageError
/// for weights with label smoothing; backward throws UsageError where a mean's divisor is unknown: for part of a batch,
/// such as in a replica, and under DDP for batches without a loader's stamp, within join() and in recorded steps.
Variable nll_loss(const Variable& x, const Tensor& labels, const LabelOptions& options);
Variable cross_entropy(const Variable& x, const Tensor& labels, const LabelOptions& options);

/// Mean of (x - target)^2 over all elements: (N, ...) both -> scalar.
Variable mse_loss(const Variable& x, const Tensor& target);

/// Mean of |x - target| over all elements: (N, ...) both -> scalar. Its slope is 0 where they are equal.
Variable l1_loss(const Variable& x, const Tensor& target);

/// Mean over all elements of -(target log(x) + (1 - target) log(1 - x)), logarithms at least -100, as in PyTorch: x
/// (N, ...) probabilities of a class, target of x's shape, its probability -> scalar. NaN for an x outside [0, 1],
/// where PyTorch throws.
Variable binary_cross_entropy(const Variable& x, const Tensor& target);
/// binary_cross_entropy of sigmoid(x), for logits of any size.
Variable binary_cross_entropy_with_logits(const Variable& x, const Tensor& target);

/// The mean of all elements of x (N, ...), as the end of a loss of one's own: unlike mean() it divides its gradient by
/// the rows of the global batch, so that bits are equal on any number of devices. It is no operator for the middle of a
/// network, where a loss behind it would divide a second time.
///   const Variable error = prediction - target;
///   const Variable loss = ops::batch_mean(error * error);
Variable batch_mean(const Variable& x);

/// What one of the losses above has added up in each block of its batch, by block, 0 of those of which it has no rows;
/// before backward. Their sums over all devices and ranks make mean_of_blocks() the loss of the whole batch with the
/// bits of one device. Empty for other results, of rows without a stamp, without a tape, and on GPUs.
std::span<const float> block_sums(const Variable& loss);
/// The mean of `terms`, rows or elements of the whole batch, from the blocks' sums.
float mean_of_blocks(std::span<const float> sums, std::int64_t terms);

/// Number of rows of x (N, C) whose entry at labels (N) i64 is among the k largest of the row, 1 <= k <= C: the
/// numerator of top-k accuracy. Of equal entries the one with the lower class comes first, while
/// torch.topk leaves that open; a NaN is larger than any number, as there. A label outside [0, C) is in no top. The
/// host waits for the device.
std::int64_t count_in_top(const Variable& x, const Tensor& labels, std::int64_t k);

/// The mean over all rows of a batch from the means of its shards: sum of rows_i / rows * losses_i, of the shape of
/// each, on `device`; shards without rows count nothing. The losses above each get the whole gradient, as theirs is
/// already the shard's share; others, of the user's own, get rows_i / rows of it. `batch`: the stamp of the whole.
/// Throws UsageError for a loss that is a sum of both kinds, ShapeError for different shapes.
Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, const Rows& batch,
                        Device device);

}  // namespace duet::ops
