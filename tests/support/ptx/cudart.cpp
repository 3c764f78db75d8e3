#include "tests/support/ptx/cudart.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/registry.h"

duet_ptx::Device& duet_ptx::device() {
  static Device only;
  return only;
}

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  duet_ptx::Device& device = duet_ptx::device();
  duet_ptx::RegisteredKernel& registered = duet_ptx::registered_kernel(function);
  const std::vector<std::uint8_t> bytes = duet_ptx::parameter_bytes_of(*registered.kernel, arguments);
  const dim3 grid = config->gridDim, block = config->blockDim;
  ++registered.launches;
  // Programmatic launches, clusters and cooperation change what a launch means.
  if (config->numAttrs != 0) device.findings.add("attributes of a launch are not interpreted", registered.name);
  const bool ended =
      duet_ptx::run(*registered.kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, config->dynamicSmemBytes,
                    bytes.data(), device.memory, device.options, device.findings, device.statistics);
  return ended ? cudaSuccess : cudaErrorLaunchTimeout;
}
