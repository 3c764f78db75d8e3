// Kernels of nvcc's objects on the simulated devices: a launch is an operation there that interprets the whole grid.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/cuda/launch.h"
#include "tests/support/fake_cuda/sim.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/memory.h"
#include "tests/support/ptx/registry.h"

enum cudaError : unsigned;
namespace duet::cuda {
/// The vendor's headers, which nvcc compiles against, call the type cudaError.
void check(cudaError status, const char* what);
void check(cudaError status, const char* what) { check(static_cast<cudaError_t>(status), what); }
}  // namespace duet::cuda

namespace {

/// Interprets a grid; operations run one at a time. What is found is an error as on a GPU.
void interpret(duet_ptx::RegisteredKernel& registered, const cudaLaunchConfig_t& config,
               const std::vector<std::uint8_t>& arguments, std::uint64_t seed) {
  static duet_ptx::Memory unused;
  static duet_ptx::Statistics statistics;
  const dim3 grid = config.gridDim, block = config.blockDim;
  duet_ptx::Options options;
  options.own_memory = false;  // the simulator's pages guard it
  options.seed = seed;
  duet_ptx::Findings findings;
  ++registered.launches;
  const bool ended = duet_ptx::run(*registered.kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
                                   config.dynamicSmemBytes, arguments.data(), unused, options, findings, statistics);
  for (const std::string& text : findings.texts) duet_sim::report("%s", text.c_str());
  if (!ended)
    duet_sim::fail_current_op(cudaErrorLaunchTimeout);
  else if (findings.counts.count("misaligned") != 0)
    duet_sim::fail_current_op(cudaErrorMisalignedAddress);
  else if (!findings.texts.empty())
    duet_sim::fail_current_op(cudaErrorIllegalAddress);
}

}  // namespace

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  duet_ptx::RegisteredKernel& registered = duet_ptx::registered_kernel(function);
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(duet_ptx::parameter_bytes_of(*registered.kernel, arguments));
  std::vector<duet_sim::PointerArgument> pointers;
  for (const duet_ptx::PointerParameter& pointer : duet_ptx::pointer_parameters(*registered.kernel)) {
    const void* value;
    std::memcpy(&value, bytes->data() + pointer.offset, sizeof value);
    pointers.push_back({value, static_cast<int>(pointer.parameter), pointer.whole});
  }
  return duet_sim::launch_grid(
      *config, function,
      [&registered, config = *config, bytes](std::uint64_t seed) { interpret(registered, config, *bytes, seed); },
      std::move(pointers));
}
