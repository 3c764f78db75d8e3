// The one way to start an own kernel. No <<< >>>, so that a C++ compiler can compile the sources with device code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/backend/cuda/check.h"

namespace duet::cuda {

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

/// Threads of a block of the elementwise kernels, and the blocks that n elements take, `each` to a thread.
inline constexpr unsigned kThreads = 256;
inline dim3 blocks_for(std::int64_t n, std::int64_t each = 1) {
  const std::int64_t per_block = static_cast<std::int64_t>(kThreads) * each;
  return dim3(static_cast<unsigned>((n + per_block - 1) / per_block));
}

}  // namespace duet::cuda
