// Results of CUDA and NCCL as exceptions.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string>
#include <string_view>

#include "lib/error.h"

namespace duet::ddp::nccl {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that an error that is not sticky does not show up in the next call
  throw DeviceError(concat("cuda: ", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

/// NCCL's result for an error on another rank.
class RemoteError : public CommError {
 public:
  using CommError::CommError;
};

/// "NCCL: invalid usage (Duplicate GPU detected)". NCCL's last error is that of the process.
inline std::string text_of(ncclResult_t result) {
  const char* const more = ncclGetLastError(nullptr);
  const bool says_more = more != nullptr && *more != '\0' && std::string_view(more) != ncclGetErrorString(ncclSuccess);
  return concat("NCCL: ", ncclGetErrorString(result), says_more ? concat(" (", more, ")") : "");
}

inline void check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  require<CommError>(result != ncclInProgress, "NCCL: a call returned before its operation was enqueued, although the ",
                     "communicator blocks: NCCL_COMM_BLOCKING, which overrules that, must not be 0");
  if (result == ncclRemoteError) throw RemoteError(text_of(result));
  throw CommError(text_of(result));
}

/// Makes a GPU the calling thread's current one.
inline void activate(int gpu) {
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current != gpu) check(cudaSetDevice(gpu), "cudaSetDevice");
}

}  // namespace duet::ddp::nccl
