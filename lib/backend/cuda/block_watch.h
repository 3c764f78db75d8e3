// A seam for tools that watch memory: the cache in memory.cpp hides from them who uses a block of cudaMalloc's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace duet::cuda {

/// Called when the cache lends out the first `bytes` bytes of a block, and with 0 when it gets the block back; users
/// follow each other in the order of `stream`. block_watch.cpp does nothing; a build may link another file in its
/// place.
void block_changes_hands(void* block, std::size_t bytes, cudaStream_t stream);

}  // namespace duet::cuda
