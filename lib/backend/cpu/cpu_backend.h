// The CPU as a backend: oneDNN for convolutions, own loops for the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/base/function_ref.h"

namespace duet::cpu {

class CpuDevice;
struct Worker;

/// Host memory, kept by size for the next tensor of that size. Shared by all CPU devices: they share memory. A training
/// step asks for the same sizes again and again, so after two steps every request is met from what came back.
class HostAllocator final : public Allocator {
 public:
  ~HostAllocator() override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  std::size_t empty_cache() override;
  void clear(void* memory, std::size_t bytes) override;
  void copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) override;

 private:
  std::size_t free_blocks() noexcept;

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;  // by rounded size
};

/// Under Precision::bf16 convolutions in one group to layouts in blocks round what they multiply, but not the weight
/// gradients of plain images and, unless AMX's tiles take them, of small ones; other convolutions, conv_pool_relu and
/// linear layers compute in fp32.
///
/// A kernel on device cpu:i runs on `threads_per_device` workers, pinned to cores i * threads and up where there are
/// enough; worker 0 is the thread that calls it. Several threads may call kernels of one device at the same time, each
/// with workers and scratch memory of its own; only those of the first are pinned.
class CpuBackend final : public Backend {
 public:
  CpuBackend();

  int device_count() const override;
  std::string describe(Device device) const override;
  std::string libraries() const override;
  void bind_thread(Device device) override;
  void set_threads_per_device(int threads) override;
  int threads_per_device() const override { return threads_per_device_; }
  Allocator& allocator(Device) override { return memory_; }
  void synchronize(Device) override {}
  bool shares_memory() const override { return true; }
  void* stream(Device) override { return nullptr; }
  void order(Device, void*, void*) override {}
  StepRecorder* recorder(Device) override { return nullptr; }
  void set_precision(Precision precision) override;
  Precision precision() const override { return precision_; }
  bool has_used_precision() const override { return precision_ == Precision::fp32 || has_rounded_; }
  void set_deterministic(bool) override {}
  DeviceUse use(Device) override { return {}; }
  bool copies_directly(Device, Device) override { return true; }

#include "lib/backend/kernel_overrides.inc"
  bool has_layer_norm() const override { return true; }
  void layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                          const Tensor& y) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, float eps, const Tensor& dx,
                           const Tensor& dweight, const Tensor& dbias) override;
  bool has_attention() const override { return true; }
  void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Tensor& weights,
                         const Tensor& y) override;
  void attention_backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                          const Tensor& weights, const Tensor& dq, const Tensor& dk, const Tensor& dv) override;

 private:
  /// The calling thread's.
  CpuDevice& device(Device device);
  CpuDevice& device(const Tensor& tensor) { return device(tensor.device()); }
  /// Calls task(begin, end, worker) for the rows of each block of `tensor`, on the device's threads.
  void for_each_block(const Tensor& tensor, FunctionRef<void(std::int64_t begin, std::int64_t end, int worker)> task);

  /// Calls update(begin, end) for a share of a flat buffer's elements, or all of them on the device's threads.
  void divide_update(const Tensor& value, int share, int shares,
                     FunctionRef<void(std::int64_t begin, std::int64_t end)> update);

  void multiply(Worker& worker, const Product& product);
  /// linear_backward; `skips_zeros` pays where most of dy is zero.
  void linear_gradients(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx, const Tensor& dw,
                        const Tensor& db, bool skips_zeros);
  /// Whether a convolution rounds what it multiplies to bf16; noted in has_rounded_.
  bool rounds(const Tensor& x, const Tensor& w, const Tensor& y);
  /// Convolutions of bf16 numbers by the processor's tiles, and their weight gradients.
  void tiled_conv(const BlockedConv& g, bool backward, const Tensor& from, const Tensor& w, const Tensor& to);
  void tiled_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window2d& window);
  /// The gradient of log_softmax's argument, where that of nll_loss at the labels is `gradient`.
  void logit_gradients(float gradient, const Tensor& y, const Tensor& labels, const Tensor& dx);
  /// Dropout of one row of a fused operator's output.
  void drop_row(const DropoutKey& key, std::int64_t row, const Tensor& y, float* out, std::uint8_t* out_index,
                Worker& worker);
  /// conv_pool_relu_forward by one kernel that keeps the convolution's outputs in registers.
  void pooled_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y, const Tensor& index,
                      const ConvPoolRelu& op);
  /// conv_pool_relu_backward for plain images without a gradient.
  void plain_pooled_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& dw, const Tensor& db,
                             const ConvPoolRelu& op);
  /// conv_pool_relu_backward over nonzero gradients only.
  void nonzero_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w, const Tensor& dx,
                        const Tensor& dw, const Tensor& db, const ConvPoolRelu& op);

  const Kernels& kernels_;
  HostAllocator memory_;
  std::atomic<int> threads_per_device_{1};
  std::atomic<Precision> precision_{Precision::fp32};
  std::atomic<bool> has_rounded_{false};
};

inline int block_of(Layout layout) { return layout == Layout::blocked16 ? 16 : layout == Layout::blocked8 ? 8 : 1; }

inline float* rows_of(const Tensor& tensor, std::int64_t begin) {
  return tensor.data<float>() + begin * tensor.shape().count_from(1);
}

/// Null if the tensor is undefined.
inline float* rows_or_null(const Tensor& tensor, std::int64_t begin = 0) {
  return tensor.defined() ? rows_of(tensor, begin) : nullptr;
}

/// A batch's blocks as the kernels take them.
inline Leaves leaves_of(const Blocks& blocks) {
  static_assert(kMostLeaves == kMostBlocks);
  return {blocks.ranges.data(), blocks.leaf_count, blocks.additions.data(), blocks.addition_count, blocks.add_zero};
}

}  // namespace duet::cpu
