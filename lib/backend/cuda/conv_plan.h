// Convolutions as cuDNN's descriptors with the algorithm chosen, made once per shape and remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "lib/backend/cuda/cuda_device.h"

namespace duet::cuda {

enum class ConvPass { forward, backward_data, backward_weights };

struct ConvKey {
  ConvPass pass;
  std::int64_t batch, in_channels, height, width, out_channels;
  Window2d window;
  Precision precision;
  bool operator==(const ConvKey&) const = default;
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

/// A convolution of one shape. Only algorithms that give the same bits each time are taken.
class ConvPlan {
 public:
  /// Throws DeviceError when cuDNN has no algorithm for it.
  ConvPlan(cudnnHandle_t handle, const ConvKey& key);
  /// forward: a = x, b = w, result = y; backward_data: dy, w, dx; backward_weights: x, dy, dw. Overwrites the result.
  /// All at addresses that are multiples of 16.
  void run(CudaDevice& device, const float* a, const float* b, float* result) const;

 private:
  using TensorDescriptor =
      Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;

  void choose_forward(cudnnHandle_t handle);
  void choose_backward_data(cudnnHandle_t handle);
  void choose_backward_weights(cudnnHandle_t handle);
  /// Takes the first algorithm of cuDNN's list, the fastest first, that suits; returns it. `set_workspace` sets
  /// workspace_bytes_ to what an algorithm needs.
  template <class Result, class SetWorkspace>
  auto choose(const Result* results, int count, SetWorkspace set_workspace);

  ConvPass pass_;
  Precision precision_;
  TensorDescriptor x_, y_;
  Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor> w_;
  Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor> conv_;
  cudnnConvolutionFwdAlgo_t forward_{};
  cudnnConvolutionBwdDataAlgo_t backward_data_{};
  cudnnConvolutionBwdFilterAlgo_t backward_weights_{};
  std::size_t workspace_bytes_ = 0;
};

/// The plans of one device; used by the thread that launches its kernels.
class ConvPlans {
 public:
  /// The plan for `key`, made on first use.
  const ConvPlan& plan(cudnnHandle_t handle, const ConvKey& key);

 private:
  struct Hash {
    std::size_t operator()(const ConvKey& key) const;
  };
  std::unordered_map<ConvKey, ConvPlan, Hash> plans_;
};

}  // namespace duet::cuda
