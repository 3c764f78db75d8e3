// The one way to start an own kernel, and the check of every call of CUDA's libraries. No <<< >>>, so that a C++
// compiler can compile the sources with device code.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

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

/// Enqueues a grid of blocks of threads on `stream`, of the thread's current device. A grid without blocks: no launch.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), current_operator());
}

/// Rows that one launch works on, with a thread for each of `threads` elements or groups of elements, of which all rows
/// have equally many. They are counted in 32 bits: GPUs divide those by a tenth of the instructions.
struct LaunchRows {
  std::int64_t first;
  unsigned threads;
};
#if !defined(DUET_MOST_THREADS)  // the simulated devices have fewer, so that tests see several launches
#define DUET_MOST_THREADS 0x7fffffff
#endif

/// Launches the kernel over all rows, each of up to DUET_MOST_THREADS threads; once, unless there are more in all.
template <class... Parameters, class... Arguments>
void launch_rows(void (*kernel)(LaunchRows, Parameters...), std::int64_t rows, std::int64_t row_threads,
                 unsigned block_threads, cudaStream_t stream, const Arguments&... arguments) {
  if (rows == 0 || row_threads == 0) return;
  const std::int64_t most = std::max<std::int64_t>(1, DUET_MOST_THREADS / row_threads);
  for (std::int64_t first = 0; first < rows; first += most) {
    const auto threads = static_cast<unsigned>(std::min(most, rows - first) * row_threads);
    launch(kernel, dim3((threads + block_threads - 1) / block_threads), dim3(block_threads), 0, stream,
           LaunchRows{first, threads}, arguments...);
  }
}

/// Threads of a block of the elementwise kernels, and the blocks that n elements take, `each` to a thread.
inline constexpr unsigned kThreads = 256;
inline dim3 blocks_for(std::int64_t n, std::int64_t each = 1) {
  const std::int64_t per_block = static_cast<std::int64_t>(kThreads) * each;
  return dim3(static_cast<unsigned>((n + per_block - 1) / per_block));
}

}  // namespace duet::cuda
