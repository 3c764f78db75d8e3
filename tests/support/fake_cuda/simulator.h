// A simulated CUDA for tests: libfake_cuda.so stands in for the runtime, cuDNN, cuBLAS and NCCL on a machine without
// any.
//
// All work on a stream is queued and runs only when a thread synchronises or queries, in a seeded random order
// among what streams, events and graphs allow: a missing event or wait shows as a wrong result. Device memory can be
// touched only while an operation of its device (or of one with peer access) runs; freed memory never again. What goes
// wrong is printed as "simulator: ..." and becomes the sticky error that CUDA would give.
//
// README.md lists the environment variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace duet_sim {

struct Live {
  std::size_t allocations = 0, bytes = 0;
};
/// Memory allocated and not freed: of a device, or pinned host memory with device -1.
Live live(int device);
/// Whether the device got a context: was set, or given memory, a stream or an event.
bool has_context(int device);
/// Forgets queued work and sticky errors, seeds the order, and sets failures to inject (as DUET_SIM_FAIL).
void reset(std::uint64_t seed, const std::string& fail = "");
/// A pool over cudaMalloc hands the first bytes of a block out, or takes it back (0 bytes), in the stream's order: what
/// a user leaves is gone, and what lies beyond its bytes is not to be written.
void hand_over(void* block, std::size_t bytes, struct CUstream_st* stream);
/// Sets failures to inject from now on, as DUET_SIM_FAIL, and leaves the rest as it is.
void set_failures(const std::string& specification);
/// The next call of a function makes this call first, and takes as long.
void before_next(const std::string& function, const std::function<void()>& call);
/// How often each function was called since the last call of this; own kernels are calls of "cudaLaunchKernelEx".
std::map<std::string, long> take_calls();
/// What was reported since the last call.
std::string take_report();

}  // namespace duet_sim
