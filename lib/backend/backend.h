// The contract between duet and a kind of device: memory, threads, copies and kernels.
//
// Pure virtual, so that a backend with a gap does not compile, but for layer norm and attention, which operators can
// compose of others. Kernels receive checked tensors of the right shape, dtype and device, and allocated results.
//
// Note [Order]: calls on one device run in order, and so do its allocations: memory that was given back may be handed
// out again while work that was asked for before still reads it. A copy between two devices is ordered after everything
// asked of both before it, and everything asked of either later is ordered after the copy; the host does not wait. A
// copy to the host is done when it returns. A copy from the host may be under way, but the host memory may be used
// again. On CPU everything is simply done when the call returns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "lib/backend/average_pool.h"
#include "lib/backend/pointwise.h"
#include "lib/blocks.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet {

/// See Note [Sums over samples] in lib/blocks.h: the part of one tensor's rows that lies in each block of its global
/// batch, and the additions that sum the blocks.
struct Blocks {
  struct Range {
    std::int64_t begin, end;  // rows of the tensor
    std::int64_t rows() const { return end - begin; }
  };
  Range leaf(int i) const {
    const auto at = 2 * static_cast<std::size_t>(i);
    return {ranges[at], ranges[at + 1]};
  }
  Addition addition(int i) const {
    const auto at = 2 * static_cast<std::size_t>(i);
    return {additions[at], additions[at + 1]};
  }

  std::array<std::int64_t, 2 * kMostBlocks> ranges{};  // begin and end of each leaf's rows
  int leaf_count = 0;
  std::array<int, 2 * (kMostBlocks - 1)> additions{};  // in order; the sum ends up in leaf 0
  int addition_count = 0;
  /// Some block of the global batch is empty. Then every sum gets +0 added, which turns -0 into +0: the same wherever
  /// the empty blocks are.
  bool add_zero = false;
};

/// The sum of the leaves' parts by the tree.
template <class T>
T sum_by_tree(const Blocks& blocks, std::array<T, kMostBlocks> part) {
  for (int i = 0; i < blocks.addition_count; ++i) {
    const auto [to, from] = blocks.addition(i);
    part[static_cast<std::size_t>(to)] += part[static_cast<std::size_t>(from)];
  }
  return part[0];
}

/// Throws UsageError for a tensor of more rows than its stamp's batch has from `first` on.
void require_rows_of_batch(const Rows& stamp, std::int64_t rows);
/// Blocks of a tensor of `rows` rows with this stamp. A tensor without rows has one empty leaf. Throws as
/// require_rows_of_batch().
Blocks blocks_of(const Rows& stamp, std::int64_t rows);
inline Blocks blocks_of(const Tensor& batch) { return blocks_of(batch.stamp_or_self(), batch.size(0)); }

/// A 2-D window that walks over an image: kernel size, stride and zero padding, (height, width) each.
struct Window2d {
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_h = 0, pad_w = 0;

  std::int64_t out_h(std::int64_t h) const { return (h + 2 * pad_h - kernel_h) / stride_h + 1; }
  std::int64_t out_w(std::int64_t w) const { return (w + 2 * pad_w - kernel_w) / stride_w + 1; }
  /// Whether an image of (h, w) pixels holds at least one window; the sizes above round towards zero and do not
  /// show it.
  bool fits(std::int64_t h, std::int64_t w) const { return h + 2 * pad_h >= kernel_h && w + 2 * pad_w >= kernel_w; }
  bool operator==(const Window2d&) const = default;
};

/// Identifies the random numbers of one dropout layer in one step. Row r of the global batch and element e of that row
/// (plain order) always get the same decision, on every device and for every split of the batch.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t layer = 0;
  float p = 0;  // probability that an element becomes zero; 0: no dropout

  /// Factor of the elements that are kept; 1 without dropout.
  float scale() const { return 1.0f / (1.0f - p); }
  /// An element is kept when its 16-bit random number is at least this: p in steps of 2^-16.
  std::uint32_t threshold() const { return static_cast<std::uint32_t>(p * 65536.0f + 0.5f); }
};

/// Settings of one SGD update (torch.optim.SGD).
struct SGDRule {
  float lr = 0.01f, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the momentum buffer is still empty: it becomes the gradient
};

/// Settings of one Adam or AdamW update (torch.optim.Adam, torch.optim.AdamW).
struct AdamRule {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // AdamW: weight decay shrinks the value, and stays out of the moments
  std::int64_t step = 1;   // updates of these elements, this one included
};

/// Arithmetic of convolutions and linear layers: strict single precision; inputs rounded to TF32; inputs rounded to
/// bfloat16, on CPU those of some convolutions (lib/backend/cpu/cpu_backend.h). Sums are single precision in all of
/// them.
enum class Precision { fp32, tf32, bf16 };
const char* name(Precision precision);

/// The settings that a fused convolution-bias-pool-relu-dropout takes besides its tensors.
struct ConvPoolRelu {
  Window2d conv, pool;
  DropoutKey dropout;
};

/// Memory of one device, and what was copied to and from it, in bytes. All 0 on CPU, whose memory is the process's.
struct DeviceUse {
  std::size_t total = 0, free = 0;           // memory of the whole GPU, for all processes together
  std::size_t held = 0, used = 0, peak = 0;  // by this process for this device: from the driver, in use, most in use
  std::uint64_t moved = 0;                   // copied between it and the host or other devices so far
};

class StepRecorder;

/// Adds numbers up over all devices that hold rows of one batch, where statistics are to be those of the whole batch.
class BatchSums {
 public:
  virtual ~BatchSums() = default;
  /// Every device calls it in the same order with as many values, and gets the sums: by the tree of Note [Sums over
  /// samples], so that they have the bits of one device. A device with several subtrees of the blocks gives `parts`
  /// runs of values, one after the other, and gets the sums in the first. Throws when another device has failed.
  virtual void sum(std::span<double> values, int parts = 1) = 0;
  /// Sums gradients; the last value of each part is the number of samples that they are of. Returns the samples of the
  /// mean whose gradients they are: all, unless gradients are those of means over each device's own rows; these are
  /// weighted by those rows / all rows.
  virtual double sum_gradients(std::span<double> values, int parts = 1) {
    sum(values, parts);
    return values[values.size() / static_cast<std::size_t>(parts) - 1];
  }
};

/// Settings of a batch norm.
struct BatchNorm2dOptions {
  bool training = true;   // statistics of the batch, which move the running ones; else the running ones
  float momentum = 0.1f;  // how far the running statistics move towards the batch's
  float eps = 1e-5f;
  /// Where set, the batch has rows on other devices, too, and the statistics are those of all rows; only devices that
  /// share_memory() have to do that. It must outlive the tape.
  BatchSums* others = nullptr;
  bool relu = false;  // relu is applied to the result, a residual included
};

/// Vectors of a tensor (..., size): the product of all sizes but the last.
inline std::int64_t vectors_of(const Shape& shape) {
  std::int64_t count = 1;
  for (int d = 0; d < shape.rank() - 1; ++d) count *= shape[d];
  return count;
}

/// A tensor as kernels walk over it by the places of some shape: along each dimension of that, `strides` elements at a
/// time; 0 where its elements repeat.
struct Strided {
  Tensor tensor;
  std::array<std::int64_t, Shape::kMaxRank> strides{};
  std::int64_t begin = 0;  // the element at the first place
};
/// The tensor with each dimension of size 1, and those that it lacks in front, repeated as `shape` asks. Undefined: an
/// undefined tensor.
Strided broadcast(const Tensor& tensor, const Shape& shape);

/// Arguments of a function of elements.
struct PointwiseInputs {
  Strided a, b, c;
  float number = 0;  // in the place of each that is undefined
};

/// The loops over all places of a shape with at least one; neighbouring ones are joined where all tensors allow it.
Walk walk_of(const Shape& shape, std::initializer_list<const Strided*> tensors);

class Backend {
 public:
  virtual ~Backend() = default;

  // --- devices ---
  /// Number of devices of this kind; a CPU has as many as are asked for.
  virtual int device_count() const = 0;
  /// One line for people: "AVX-512, 1 thread".
  virtual std::string describe(Device device) const = 0;
  /// The libraries that its kernels use, with the versions found at run time: "oneDNN 2.6.3".
  virtual std::string libraries() const = 0;
  /// Makes the calling thread the one that works for `device` (pins it, selects the GPU).
  virtual void bind_thread(Device device) = 0;
  /// Threads that share out the blocks of each kernel on every device of this kind; before the first kernel only.
  virtual void set_threads_per_device(int threads) = 0;
  virtual int threads_per_device() const = 0;
  virtual Allocator& allocator(Device device) = 0;
  /// Returns when everything asked of `device` is done.
  virtual void synchronize(Device device) = 0;
  /// True when devices of this kind can read each other's memory in place.
  virtual bool shares_memory() const = 0;
  /// The stream on which everything of `device` is ordered, as its vendor's type (cudaStream_t); null on CPU.
  virtual void* stream(Device device) = 0;
  /// Makes work enqueued on `second` from now on run after the work enqueued on `first` so far: both are streams of the
  /// device's GPU, one of them stream(device), the other one foreign; null is CUDA's default stream. With memory of
  /// other libraries, work is ordered so before and after a call here. The host does not wait. No effect on CPU.
  /// Throws UsageError while a CUDA graph is recorded on either.
  virtual void order(Device device, void* first, void* second) = 0;
  /// The recorder of steps on `device` (lib/backend/step_graph.h); null on CPU, where no step can be recorded.
  virtual StepRecorder* recorder(Device device) = 0;
  /// The precision of all devices of this kind, fp32 at first. Throws UsageError for one that this kind does not have.
  virtual void set_precision(Precision precision) = 0;
  virtual Precision precision() const = 0;
  /// Whether that precision has been of effect since it was set: on CPU false until a kernel computes in it, unless it
  /// is fp32.
  virtual bool has_used_precision() const = 0;
  /// Whether every run of a program gives the same bits; false at first. On CPU they always do. On CUDA the fastest
  /// convolutions are found by timing them, and another run may find others; true takes cuDNN's first estimate.
  virtual void set_deterministic(bool deterministic) = 0;
  virtual DeviceUse use(Device device) = 0;
  /// Whether copies from one device to another need no detour through the host.
  virtual bool copies_directly(Device from, Device to) = 0;

  // --- copies ---
  /// Copies `rows` runs of `width` bytes; runs start `pitch` bytes apart.
  virtual void copy_2d(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
                       std::size_t width, std::size_t rows, Device device) = 0;
  /// (N, C, H, W) from any layout to the plain one.
  virtual void to_plain(const Tensor& x, const Tensor& y) = 0;
  /// (N, C, H, W) from the plain layout to that of y.
  virtual void from_plain(const Tensor& x, const Tensor& y) = 0;

  // --- convolution: x (N, C, H, W), w (K, C / groups, R, S) plain, b (K) or undefined, y (N, K, P, Q). The shapes of x
  // and w give the groups, into which K divides ---
  /// The layout of y that this backend prefers.
  virtual Layout conv2d_layout(const Shape& x, const Shape& w) const = 0;
  virtual void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                              const Window2d& window) = 0;
  virtual void conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) = 0;
  /// db may be undefined.
  virtual void conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                       const Window2d& window) = 0;

  // --- pooling: index (u8) is the place of the maximum inside its window, first in row-major order ---
  virtual void max_pool2d_forward(const Tensor& x, const Tensor& y, const Tensor& index, const Window2d& window) = 0;
  virtual void max_pool2d_backward(const Tensor& dy, const Tensor& index, const Tensor& dx, const Window2d& window) = 0;

  /// The mean of the pixels of each window: sums of rows of pixels first, then of these.
  virtual void avg_pool2d_forward(const Tensor& x, const Tensor& y, const AveragePool& pool) = 0;
  virtual void avg_pool2d_backward(const Tensor& dy, const Tensor& dx, const AveragePool& pool) = 0;

  // --- fused: dropout(relu(max_pool2d(conv2d(x)))), without groups; index is 255 where no gradient passes. The pool's
  // windows do not overlap and have no padding; y and dy may be plain or in conv2d_layout ---
  virtual void conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                      const Tensor& index, const ConvPoolRelu& op) = 0;
  /// dx may be undefined (not needed). db may be undefined.
  virtual void conv_pool_relu_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                                       const Tensor& dx, const Tensor& dw, const Tensor& db,
                                       const ConvPoolRelu& op) = 0;

  // --- linear: x (N, ..., I), w (O, I), b (O) or undefined, y (N, ..., O); fused ones: x (N, I), y (N, O) ---
  virtual void linear_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) = 0;
  /// dx may be undefined, and dw; db too, and is where dw is.
  virtual void linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx, const Tensor& dw,
                               const Tensor& db) = 0;

  /// y = a b for each of the matrices: a (..., M, K) or `a_transposed` (..., K, M), b (..., K, P) or `b_transposed`
  /// (..., P, K), y (..., M, P). One does not depend on the others.
  virtual void matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed, const Tensor& y) = 0;

  // --- fused: dropout(relu(linear(x))); with p = 0 nothing is dropped. Of y only the sign matters for the gradients:
  // they pass where it is positive or NaN ---
  virtual void linear_relu_dropout_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                           const DropoutKey& dropout) = 0;
  /// dx may be undefined, and dw; db too, and is where dw is.
  virtual void linear_relu_dropout_backward(const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& w,
                                            const Tensor& dx, const Tensor& dw, const Tensor& db,
                                            const DropoutKey& dropout) = 0;

  // --- fused: log_softmax(linear(x)), with the bits of the two one by one; each has its own backward ---
  virtual void linear_log_softmax_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) = 0;

  // --- elementwise ---
  virtual void relu_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) = 0;
  /// Fills mask (u8, x's shape, plain) with 1 for keep and 0 for drop.
  virtual void dropout_mask(const Tensor& mask, const DropoutKey& key) = 0;
  /// y = x * mask * scale; serves backward too.
  virtual void dropout_apply(const Tensor& x, const Tensor& mask, float scale, const Tensor& y) = 0;
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& y) = 0;
  /// y = f(a, b, c) at every place of `shape`. All tensors walk over memory of one layout; y may be one of the inputs
  /// where both walk alike.
  virtual void pointwise(Pointwise f, const Shape& shape, const PointwiseInputs& inputs, const Strided& y) = 0;
  /// y = the sum of x, plain, over the dimensions of which y has size 1; y has as many dimensions, 1 or more. With
  /// `over_rows` dimension 0 is one of them, by Note [Sums over samples], else it is none.
  virtual void sum(const Tensor& x, bool over_rows, const Tensor& y) = 0;
  /// y[i] = row indices[i] of the table: table (V, C), indices i64 (N, ...), y (N, ..., C). An index outside [0, V)
  /// throws ShapeError on CPU, and on CUDA makes a row of NaN.
  virtual void gather_rows(const Tensor& table, const Tensor& indices, const Tensor& y) = 0;
  /// dtable = for each row the sum of dy at its indices, by Note [Sums over samples] with the stamp of dy. Indices
  /// outside [0, V) are left out.
  virtual void sum_gathered_rows(const Tensor& dy, const Tensor& indices, const Tensor& dtable) = 0;
  virtual void scale(const Tensor& x, float factor) = 0;
  virtual void fill(const Tensor& x, float value) = 0;
  /// Adds 1 to an i64 scalar.
  virtual void increment(const Tensor& counter) = 0;

  // --- batch norm over (N, H, W) of each channel, and what may follow it: y = relu(norm(x) + residual); mean,
  // inverse_std, running_*, weight, bias, their gradients: (C); the images have x's layout ---
  /// `residual` may be undefined.
  virtual void batch_norm2d_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                    const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                                    const Tensor& inverse_std, const Tensor& y, const BatchNorm2dOptions& options) = 0;
  /// dweight and dbias are those of this device's rows. dx may be undefined. y is defined where options.relu is set,
  /// and dresidual where besides there was a residual.
  virtual void batch_norm2d_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                                     const Tensor& bias, const Tensor& mean, const Tensor& inverse_std,
                                     const Tensor& dx, const Tensor& dresidual, const Tensor& dweight,
                                     const Tensor& dbias, const BatchNorm2dOptions& options) = 0;

  // --- layer norm over the last dimension of x (N, ..., C), for backends that have it; weight (C) and bias (C) may be
  // undefined ---
  virtual bool has_layer_norm() const { return false; }
  virtual void layer_norm_forward(const Tensor& /*x*/, const Tensor& /*weight*/, const Tensor& /*bias*/, float /*eps*/,
                                  const Tensor& /*y*/) {}
  /// dx, dweight and dbias may be undefined; the last two by Note [Sums over samples] with the stamp of x.
  virtual void layer_norm_backward(const Tensor& /*x*/, const Tensor& /*weight*/, const Tensor& /*dy*/, float /*eps*/,
                                   const Tensor& /*dx*/, const Tensor& /*dweight*/, const Tensor& /*dbias*/) {}

  // --- attention over q (..., T, D), k (..., S, D) and v (..., S, E), for backends that have it; `causal`: query i
  // sees keys 0 to i. weights (..., T, S): the softmax of the scores ---
  virtual bool has_attention() const { return false; }
  virtual void attention_forward(const Tensor& /*q*/, const Tensor& /*k*/, const Tensor& /*v*/, bool /*causal*/,
                                 const Tensor& /*weights*/, const Tensor& /*y*/) {}
  virtual void attention_backward(const Tensor& /*dy*/, const Tensor& /*q*/, const Tensor& /*k*/, const Tensor& /*v*/,
                                  bool /*causal*/, const Tensor& /*weights*/, const Tensor& /*dq*/,
                                  const Tensor& /*dk*/, const Tensor& /*dv*/) {}

  // --- losses: x (N, C); labels i64 (N); loss f32: one number, behind which CPU devices put the sums of the batch's
  // blocks where there is room for them ---
  /// y may be x.
  virtual void log_softmax_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void log_softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) = 0;
  virtual void softmax_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) = 0;
  /// loss = -sum x[i, label i] * factor. A label outside [0, C) throws ShapeError "Target 3 is out of bounds.".
  virtual void nll_loss_forward(const Tensor& x, const Tensor& labels, float factor, const Tensor& loss) = 0;
  /// dx = -dloss * factor at the labels, else 0; dloss is a device scalar.
  virtual void nll_loss_backward(const Tensor& dloss, const Tensor& labels, float factor, const Tensor& dx) = 0;
  /// nll_loss_forward of log_softmax's output y, and in addition the dx that log_softmax_nll_backward gives for a dloss
  /// of 1 and `gradient_factor`.
  virtual void log_softmax_nll_forward(const Tensor& y, const Tensor& labels, float factor, const Tensor& loss,
                                       float gradient_factor, const Tensor& dx) = 0;
  /// Backward of nll_loss and the log_softmax before it in one pass: y is log_softmax's output, dx the logits' gradient
  /// (exp(y) - one_hot(labels)) * dloss * factor, with the bits of nll_loss_backward and then log_softmax_backward.
  virtual void log_softmax_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float factor,
                                        const Tensor& dx) = 0;
  /// The loss with label smoothing of log_softmax's output y: loss = -sum t[i, c] * y[i, c] * factor, where t is
  /// `smoothing` / C, and at the labels 1 - smoothing more. Labels as nll_loss_forward's.
  virtual void smoothed_nll_forward(const Tensor& y, const Tensor& labels, float smoothing, float factor,
                                    const Tensor& loss) = 0;
  /// The gradient of the logits before log_softmax: dx = (exp(y) - t) * dloss * factor.
  virtual void smoothed_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float smoothing,
                                     float factor, const Tensor& dx) = 0;
  /// loss = sum (x - target)^2 * factor.
  virtual void mse_loss_forward(const Tensor& x, const Tensor& target, float factor, const Tensor& loss) = 0;
  virtual void mse_loss_backward(const Tensor& dloss, const Tensor& x, const Tensor& target, float factor,
                                 const Tensor& dx) = 0;
  /// Number of rows whose entry at the label is among the k largest: see ops::count_in_top.
  virtual std::int64_t count_in_top(const Tensor& x, const Tensor& labels, std::int64_t k) = 0;
  /// Number of rows with the largest entry, the first among equals, at their label.
  std::int64_t count_correct(const Tensor& x, const Tensor& labels) { return count_in_top(x, labels, 1); }

  // --- update and reduction over flat buffers ---
  /// `share`/`shares`: only that part of the elements, so that devices which share memory can divide the work; the
  /// same cut as that of sum_devices. Other devices do all of it in share 0.
  virtual void sgd_step(const Tensor& value, const Tensor& gradient, const Tensor& momentum, const SGDRule& rule,
                        int share, int shares) = 0;
  /// `first` and `second` are the moments: running means of the gradient and of its square. Throws UsageError while a
  /// step is recorded: the step's number is part of the rule.
  virtual void adam_step(const Tensor& value, const Tensor& gradient, const Tensor& first, const Tensor& second,
                         const AdamRule& rule, int share, int shares) = 0;
  /// destination = sum of the parts (one per device of this process, in device order): the tree of
  /// Note [Sums over samples] for a power of two, else from the first to the last, as additions_of(int). `accumulate`
  /// adds the destination's old value last.
  /// Devices that do not share memory leave everything to share 0, which copies the parts to the destination's device.
  virtual void sum_devices(std::span<const Tensor> parts, const Tensor& destination, bool accumulate, int share,
                           int shares) = 0;
  /// Every destination = the sum of the parts, with the bits of sum_devices. parts[i] and destinations[i] are on the
  /// i-th device, all devices differ, and both may be the same tensor.
  virtual void all_reduce_devices(std::span<const Tensor> parts, std::span<const Tensor> destinations) = 0;
  /// The sum of all elements' squares, in double: the same bits for the same elements. The host waits for it.
  virtual double sum_of_squares(const Tensor& x) = 0;

  // --- data ---
  /// y[i] = row indices[i] of `rows`, every byte as (byte / 255 - mean) / deviation in float, rounded after every
  /// operation: rows (M, ...) u8, indices i64 (N), not checked, y (N, ...) f32. picked[i] = labels[indices[i]]: labels
  /// i64 (M), picked i64 (N), or both undefined.
  virtual void gather_images(const Tensor& rows, const Tensor& labels, const Tensor& indices, float mean,
                             float deviation, const Tensor& y, const Tensor& picked) = 0;
};

/// The backend of a kind of device. Throws DeviceError with the reason when this build or machine has none.
Backend& backend(DeviceKind kind);
inline Backend& backend(const Tensor& tensor) { return backend(tensor.device().kind); }

/// Once turned on, loops and wrappers wait for their devices at the end of each part of a step, so that the host's
/// clock has what the part takes. For processes that time parts: whole steps take longer. Thread-safe.
class TimedParts {
 public:
  static void turn_on();
  /// Waits for everything asked of these devices, if it is on.
  static void end_part(std::span<const Device> devices);
};

/// x (N, C, H, W) in this layout of its backend; x itself if it has it.
Tensor in_layout(const Tensor& x, Layout layout);

// The CUDA backend is a module: a program built with it starts on machines without a driver or CUDA's libraries.

/// The function that the module exports as kCudaBackendName. It returns the one backend, which lives as long as the
/// process. Throws DeviceError with the reason when no GPU can be used.
using CudaBackendEntry = Backend* (*)();
inline constexpr const char* kCudaBackendName = "duet_cuda_backend";

/// Empty if CUDA devices can be used, else why not. Looks for the module and for GPUs, but touches no GPU.
std::string why_no_cuda();

}  // namespace duet
