// The CUDA backend is a module: a program built with it starts on machines without a driver or CUDA's libraries.
#pragma once

#include <string>

#include "lib/backend/backend.h"

namespace duet {

/// What the module exports, as kCudaBackendName: the one backend, which lives as long as the process. Throws
/// DeviceError with the reason when no GPU can be used.
using CudaBackendEntry = Backend* (*)();
inline constexpr const char* kCudaBackendName = "duet_cuda_backend";

/// The backend of the GPUs, loaded when first asked for. Throws DeviceError with the reason when there is none.
Backend& cuda_backend();

/// Empty if CUDA devices can be used, else why not. Looks for the module and for GPUs, but touches no GPU.
std::string why_no_cuda();

}  // namespace duet
