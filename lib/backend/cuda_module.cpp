#include "lib/backend/cuda_module.h"

#include "lib/base/module_loader.h"

namespace duet {
namespace {

struct Found {
  Backend* backend = nullptr;
  std::string error;
};

Found find() {
  const LoadedModule module = load_module({.title = "the CUDA module",
                                           .file = "libduet_cuda.so",
                                           .build_folder = "lib/backend/cuda",
                                           .symbol = kCudaBackendName,
                                           .path_variable = "DUET_CUDA_MODULE"});
  if (module.symbol == nullptr) return {nullptr, module.error};
  try {
    return {reinterpret_cast<CudaBackendEntry>(module.symbol)(), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

/// Decided once: a machine's driver and GPUs do not appear while a program runs. Never destroyed: tensors in static
/// storage may outlive it.
const Found& found() {
  static const auto* const result = new Found(find());
  return *result;
}

}  // namespace

Backend& cuda_backend() {
  require<DeviceError>(found().backend != nullptr, "no CUDA device: ", found().error);
  return *found().backend;
}

std::string why_no_cuda() { return found().error; }

}  // namespace duet
