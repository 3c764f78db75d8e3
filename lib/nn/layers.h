// The layers, with PyTorch's names, defaults, initial values and text.
#pragma once

#include <cstdint>
#include <string>

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/nn/module.h"

namespace duet::nn {

/// torch.nn.Linear: (N, in) -> (N, out). Initial weights and bias uniform within 1 / sqrt(in).
class Linear : public Module {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, bool bias = true);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  const Variable& weight(const Context& context) const { return parameter(context, 0); }
  /// Undefined without a bias.
  Variable bias(const Context& context) const { return bias_ ? parameter(context, 1) : Variable(); }

 protected:
  std::string details() const override;

 private:
  std::int64_t in_, out_;
  bool bias_;
};

struct Conv2dOptions {
  std::int64_t stride = 1, padding = 0;
  bool bias = true;
  std::int64_t groups = 1;  // an output channel reads the in / groups channels of its group only
};

/// torch.nn.Conv2d with square kernels: (N, in, H, W) -> (N, out, P, Q); weight (out, in / groups, kernel, kernel).
/// Initial weights and bias uniform within 1 / sqrt(in / groups * kernel * kernel). Throws UsageError, with the
/// numbers, for sizes that make no convolution.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel_size,
         const Conv2dOptions& options = {});
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  const Window2d& window() const { return window_; }
  bool has_bias() const { return bias_; }
  std::int64_t groups() const { return groups_; }
  const Variable& weight(const Context& context) const { return parameter(context, 0); }
  /// Undefined without a bias.
  Variable bias(const Context& context) const { return bias_ ? parameter(context, 1) : Variable(); }

 protected:
  std::string details() const override;

 private:
  std::int64_t in_, out_;
  Window2d window_;
  bool bias_;
  std::int64_t groups_;
};

/// torch.nn.Dropout: active in training only. Its random numbers are keyed by the context's seed, the batch's step, the
/// row in the global batch, the layer, and how often this layer has drawn for the batch before (Context::draws), so
/// they do not depend on how the batch is split: one Dropout at several places of forward, and several forwards of a
/// batch, drop other elements each time.
class Dropout : public Module {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  explicit Dropout(double p = 0.5);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  /// The key of this layer's next draw, for x; p is 0 outside training, where nothing is counted.
  DropoutKey next_key(Context& context, const Tensor& x) const;
  /// The key of the next draw of the layer with this number, in training, for x.
  static DropoutKey key_of(Context& context, const Tensor& x, double p, std::uint32_t layer);
  /// Drops by the context's stream, in training. Throws UsageError in an elastic job, which could not draw again.
  static Variable drop_by_stream(Context& context, const Variable& x, double p);

 protected:
  std::string details() const override;

 private:
  double p_;
};

/// torch.nn.ReLU. `inplace` is in its text only: results and gradients are the same with it and without it.
class ReLU : public Module {
 public:
  explicit ReLU(bool inplace = false) : inplace_(inplace) {}
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override { return inplace_ ? "inplace=True" : ""; }

 private:
  bool inplace_;
};

/// torch.nn.MaxPool2d: (N, C, H, W) -> (N, C, P, Q). Windows tile unless a stride is given (0: the kernel's size); the
/// padding, of at most half the kernel, never is the maximum.
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(std::int64_t kernel_size, std::int64_t stride = 0, std::int64_t padding = 0);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  const Window2d& window() const { return window_; }

 protected:
  std::string details() const override;

 private:
  Window2d window_;
};

/// torch.nn.AvgPool2d: (N, C, H, W) -> (N, C, P, Q), windows as MaxPool2d's; the mean counts the padding's zeros with
/// `count_include_pad`.
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(std::int64_t kernel_size, std::int64_t stride = 0, std::int64_t padding = 0,
                     bool count_include_pad = true);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override;

 private:
  Window2d window_;
  bool count_include_pad_;
};

/// torch.nn.AdaptiveAvgPool2d((height, width)): (N, C, H, W) -> (N, C, height, width). Throws UsageError unless both
/// are 1 or more.
class AdaptiveAvgPool2d : public Module {
 public:
  AdaptiveAvgPool2d(std::int64_t height, std::int64_t width);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override;

 private:
  std::int64_t height_, width_;
};

/// torch.nn.Flatten(start_dim=1).
class Flatten : public Module {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override { return "start_dim=1, end_dim=-1"; }
};

/// torch.nn.Softmax.
class Softmax : public Module {
 public:
  explicit Softmax(int dim = 1) : dim_(dim) {}
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override { return concat("dim=", dim_); }

 private:
  int dim_;
};

/// torch.nn.LogSoftmax.
class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int dim = 1) : dim_(dim) {}
  int dim() const { return dim_; }
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override { return concat("dim=", dim_); }

 private:
  int dim_;
};

/// torch.nn.Sigmoid.
class Sigmoid : public Module {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;
};

/// torch.nn.Tanh.
class Tanh : public Module {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;
};

/// torch.nn.GELU, in its exact form.
class GELU : public Module {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override { return "approximate='none'"; }
};

/// torch.nn.LeakyReLU.
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : slope_(negative_slope) {}
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override;

 private:
  double slope_;
};

/// torch.nn.LayerNorm over the last dimensions, of this shape: (N, ..., *normalised) -> the same. Weight 1 and bias 0
/// at first.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& normalised, double eps = 1e-5, bool bias = true);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override;

 private:
  Shape normalised_;
  double eps_;
  bool bias_;
};

/// torch.nn.Embedding: indices i64 (N, ...) -> (N, ..., dim). Initial weights normal with deviation 1.
class Embedding : public Module {
 public:
  Embedding(std::int64_t embeddings, std::int64_t dim);
  Variable forward(Context& context, const Variable& indices) const override;
  using Module::forward;

  const Variable& weight(const Context& context) const { return parameter(context, 0); }

 protected:
  std::string details() const override { return concat(embeddings_, ", ", dim_); }

 private:
  std::int64_t embeddings_, dim_;
};

struct ConvTranspose2dOptions {
  std::int64_t stride = 1, padding = 0, output_padding = 0;
  bool bias = true;
  std::int64_t groups = 1;
};

/// torch.nn.ConvTranspose2d with square kernels: (N, in, H, W) -> (N, out, P, Q), see ops::conv_transpose2d; weight
/// (in, out / groups, kernel, kernel). Initial weights and bias uniform within 1 / sqrt(out / groups * kernel *
/// kernel). Throws UsageError, with the numbers, for sizes that make no convolution.
class ConvTranspose2d : public Module {
 public:
  ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel_size,
                  const ConvTranspose2dOptions& options = {});
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string details() const override;

 private:
  std::int64_t in_, out_, kernel_;
  ConvTranspose2dOptions options_;
};

/// torch.nn.BatchNorm2d: statistics of the rows of one device.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t features, float eps = 1e-5f, float momentum = 0.1f);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;
  /// relu(forward(x)), or relu(forward(x) + residual) as at the end of a residual block, by one operator where
  /// Context::fuse is set: the same values and gradients, on CPU to the last bit.
  Variable forward_relu(Context& context, const Variable& x, const Variable& residual = {}) const;

 protected:
  std::string details() const override;
  /// Adds up the statistics of all rows that they are of; null: these are the rows of this replica.
  virtual BatchSums* sums(const Context& context) const { return context.device_sums; }

 private:
  Variable normalise(Context& context, const Variable& x, bool relu, const Variable& residual) const;

  std::int64_t features_;
  float eps_, momentum_;
};

/// torch.nn.SyncBatchNorm for (N, C, H, W): under DataParallel and DistributedDataParallel the statistics are those of
/// the whole batch, so that any number of devices ends with the same bits; elsewhere a BatchNorm2d. Trains on CPU
/// devices only; DeviceError on others.
class SyncBatchNorm : public BatchNorm2d {
 public:
  using BatchNorm2d::BatchNorm2d;

 protected:
  BatchSums* sums(const Context& context) const override { return context.batch_sums; }
};

}  // namespace duet::nn
