// The module's one door: see lib/backend/backend.h.
#include "lib/backend/backend.h"
#include "lib/backend/cuda/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) duet::Backend* duet_cuda_backend() {
  // Never destroyed: the driver may be gone before statics are.
  static auto* const backend = new duet::cuda::CudaBackend();
  return backend;
}
