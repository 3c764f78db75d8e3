// The simulated devices watch the module's memory; linked in place of lib/backend/cuda/block_watch.cpp.
#include <cstddef>

#include "lib/backend/cuda/memory.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet::cuda {

void block_changes_hands(void* block, std::size_t bytes, cudaStream_t stream) {
  duet_sim::hand_over(block, bytes, stream);
}

}  // namespace duet::cuda
