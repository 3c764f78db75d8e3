// Convolutions as cuDNN's descriptors with the algorithm chosen, made once per shape and remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "lib/backend/cuda/cuda_device.h"

namespace duet::cuda {

enum class ConvPass { forward, backward_data, backward_weights };

struct ConvKey {
  ConvPass pass;
  std::int64_t batch, in_channels, height, width, out_channels, groups;
  Window2d window;
  Precision precision;
  bool deterministic;
  bool operator==(const ConvKey&) const = default;
};
struct ConvKeyHash {
  std::size_t operator()(const ConvKey& key) const;
};

/// Owns one of cuDNN's descriptors.
template <class Handle, cudnnStatus_t (*kCreate)(Handle*), cudnnStatus_t (*kDestroy)(Handle)>
class Descriptor {
 public:
  Descriptor() { check(kCreate(&handle_), "making a cuDNN descriptor"); }
  ~Descriptor() { kDestroy(handle_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

/// A convolution of one shape. Only algorithms that give the same bits each time are taken: cuDNN's first estimate, or,
/// unless the key is deterministic, the fastest of three runs each when it is first run outside of a recording. The
/// choice then holds for all devices of the process.
class ConvPlan {
 public:
  /// Throws DeviceError when cuDNN has no algorithm for it.
  ConvPlan(cudnnHandle_t handle, const ConvKey& key);
  /// forward: a = x, b = w, result = y; backward_data: dy, w, dx; backward_weights: x, dy, dw. Overwrites the result.
  /// All at addresses that are multiples of 16. An algorithm that turns out not to be supported is dropped for the
  /// next.
  void run(CudaDevice& device, const float* a, const float* b, float* result);

 private:
  using TensorDescriptor =
      Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;

  /// An entry of cuDNN's list; `algorithm` is of the enumeration of the pass.
  struct Choice {
    int algorithm;
    cudnnMathType_t math;
    std::size_t workspace_bytes;
    bool operator==(const Choice&) const = default;
  };

  /// Keeps the entries of cuDNN's list for a pass from `a` and `b` to `to` that suit, the fastest by its estimate
  /// first.
  template <class Result>
  void keep_suitable(auto list, auto workspace_of, cudnnHandle_t handle, const auto& a, const auto& b, const auto& to);
  cudnnStatus_t try_choice(CudaDevice& device, const Choice& choice, const float* a, const float* b, float* result);
  /// Whether the choice could be enqueued.
  bool runs(CudaDevice& device, const Choice& choice, const float* a, const float* b, float* result);
  /// Infinite when the algorithm is refused or fails, or there is no memory for it: another may do.
  float milliseconds_of(CudaDevice& device, const Choice& choice, const float* a, const float* b, float* result);
  void put_fastest_first(CudaDevice& device, const float* a, const float* b, float* result);

  ConvKey key_;
  TensorDescriptor x_, y_;
  Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor> w_;
  Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor> conv_;
  std::deque<Choice> choices_;  // the first is taken
  bool final_ = false;          // the first has been run, and timed if it had to be
};

/// The plans of one device; used by the thread that launches its kernels.
class ConvPlans {
 public:
  /// The plan for `key`, made when it is asked for the first time.
  ConvPlan& plan(cudnnHandle_t handle, const ConvKey& key);

 private:
  std::unordered_map<ConvKey, ConvPlan, ConvKeyHash> plans_;
};

}  // namespace duet::cuda
