// Every call of CUDA's libraries goes through check().
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

// No lib/error.h here: kernels include this file, and nvcc 13.0 fails on its inherited constructors.

namespace duet::cuda {

/// Throws DeviceError "cuda: conv2d_forward: out of memory (cudaErrorMemoryAllocation)" unless the call succeeded.
/// `what` names the operator or the call. Errors of kernels surface in a later call; the message then also names the
/// last operator that this thread enqueued.
void check(cudaError_t status, const char* what);
void check(cudnnStatus_t status, const char* what);
void check(cublasStatus_t status, const char* what);

/// Name of the calling thread's current operator, for messages.
const char* current_operator();
void set_current_operator(const char* name);

}  // namespace duet::cuda
