// Shared by the plain and the fused convolution.
#pragma once

#include <cstddef>

#include "lib/backend/cuda/conv_plan.h"
#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {

/// cuDNN's fastest kernels load four floats at a time.
inline constexpr std::size_t kConvAlignment = 16;

/// An argument as the device's convolutions take it: rounded, where the precision requires it, and at an aligned
/// address: parameters are views at any place of a flat buffer. Anything else is the tensor itself.
class ConvOperand {
 public:
  ConvOperand(CudaDevice& device, const Tensor& tensor);
  const float* data() const { return data_; }

 private:
  Tensor copy_;
  const float* data_;
};

/// The place of a result: the tensor itself, or aligned memory that finish() copies to it.
class ConvResult {
 public:
  explicit ConvResult(const Tensor& tensor);
  float* data() const { return (copy_.defined() ? copy_ : tensor_).data<float>(); }
  void finish(CudaDevice& device) const;

 private:
  const Tensor& tensor_;
  Tensor copy_;
};

/// One pass of the convolution of x (N, C, H, W) with w (K, C / groups, R, S). N > 0. For a, b and the result see
/// ConvPlan::run.
void convolve(CudaDevice& device, ConvPass pass, const Shape& x, const Shape& w, const Window2d& window,
              const ConvOperand& a, const ConvOperand& b, const Tensor& result);

/// Fills a tensor with zeros.
void clear(CudaDevice& device, const Tensor& tensor);

}  // namespace duet::cuda
