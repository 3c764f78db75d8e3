// The kernels of nvcc's objects in this program: what stands behind the functions by which they register.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/ptx/interpreter.h"

namespace duet_ptx {

struct RegisteredKernel {
  const void* function;  // the host's function by which it is launched
  std::string name;      // as in the sources, with template arguments
  std::string source;    // file without .cu
  const Kernel* kernel;
  std::uint64_t launches = 0;
};

/// The kernels for compute_N, N = DUET_PTX_ARCH, otherwise 90; or those in DUET_PTX_FOLDER, with a file of PTX for each
/// source. They are parsed on the first call.
std::vector<RegisteredKernel>& registered_kernels();
/// Throws duet::UsageError for a function that is no kernel.
RegisteredKernel& registered_kernel(const void* function);
const std::string& architecture();
/// The bytes of all parameters, of a launch's arguments.
std::vector<std::uint8_t> parameter_bytes_of(const Kernel& kernel, void* const* arguments);

}  // namespace duet_ptx
