// A hook for memory checkers, which do not see the users of a cudaMalloc block behind the cache in memory.cpp.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace duet::cuda {

/// Called when the cache hands out the first `bytes` bytes of a block, and with 0 when the block is released; users
/// follow each other in the order of `stream`. block_watch.cpp does nothing; a build may link another file in its
/// place.
void block_changes_hands(void* block, std::size_t bytes, cudaStream_t stream);

}  // namespace duet::cuda
