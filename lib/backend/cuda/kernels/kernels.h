// duet's own kernels. Each function here asks a stream of the thread's current device for its work and returns.
//
// They work on raw device pointers and know no tensors; n = 0 asks for nothing. The stream comes last.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic/dropout.h"

namespace duet::cuda::kernels {

// --- elementwise.cu: n elements ---
void relu(const float* x, float* y, std::int64_t n, cudaStream_t stream);
void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n, cudaStream_t stream);
void add(const float* a, const float* b, float* y, std::int64_t n, cudaStream_t stream);
void scale(float* x, float factor, std::int64_t n, cudaStream_t stream);
void fill(float* x, float value, std::int64_t n, cudaStream_t stream);
/// y = x * (mask ? factor : 0)
void mask_scale(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n, cudaStream_t stream);
/// mask (rows, row_count): 1 keep, 0 drop.
void dropout_mask(std::uint8_t* mask, std::int64_t rows, std::int64_t row_count, const arithmetic::DropoutDraw& draw,
                  cudaStream_t stream);

// --- update.cu: n elements ---
struct SGDFactors {
  float lr, momentum, dampening, weight_decay;
  bool nesterov, first;
};
/// momentum may be null.
void sgd(float* value, const float* gradient, float* momentum, std::int64_t n, const SGDFactors& factors,
         cudaStream_t stream);

inline constexpr int kMaxParts = 64;
struct Parts {
  const float* at[kMaxParts];
};
/// y = the parts' sum by the tree (1, 2, 4, 8 parts) or in order; plus y's old value if `accumulate`.
void sum_parts(const Parts& parts, int count, bool accumulate, float* y, std::int64_t n, cudaStream_t stream);

// --- gather.cu ---
/// y[i] = row indices[i] of `rows` (row_bytes bytes each), every byte as (byte / 255 - mean) / deviation.
void gather_images(const std::uint8_t* rows, std::int64_t row_bytes, const std::int64_t* indices, std::int64_t n,
                   float mean, float deviation, float* y, cudaStream_t stream);

// --- loss.cu ---
/// Lies in pinned host memory, one per device. A kernel that meets a label outside [0, classes) sets `seen` from 0 to 1
/// by atomicExch and, if it was the first, fills in the rest; the host looks when it has waited for the device.
struct LabelFault {
  int seen;
  std::int64_t label, row, classes;
};

}  // namespace duet::cuda::kernels
