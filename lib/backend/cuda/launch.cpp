#include "lib/backend/cuda/launch.h"

#include <string>

#include "lib/error.h"

namespace duet::cuda {
namespace {

thread_local const char* operator_name = "start";

/// Errors after which the device does nothing more, caused by some kernel launched earlier.
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorAssert: return true;
    default: return false;
  }
}

/// Advice on errors whose text does not say what to do.
const char* advice(cudaError_t status) {
  switch (status) {
    case cudaErrorDevicesUnavailable: return "; another program may hold the GPU exclusively: see nvidia-smi";
    case cudaErrorNoKernelImageForDevice: return "; duet was built for other GPUs: see the build's option gpu_archs";
    case cudaErrorUnsupportedPtxVersion:
      return "; duet has no machine code for this GPU, and the driver is too old to compile it: update the driver, or "
             "build with this GPU's sm_N in the option gpu_archs";
    default: return "";
  }
}

}  // namespace

const char* current_operator() { return operator_name; }
void set_current_operator(const char* name) { operator_name = name; }

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // an error that is not sticky must not show up again in the next call
  std::string message =
      concat("cuda: ", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")", advice(status));
  if (is_sticky(status)) message += concat(", caused by ", operator_name, " or an operator before it");
  throw DeviceError(message);
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  char more[512] = "";  // the reason, where cuDNN gives one
  cudnnGetLastErrorString(more, sizeof more);
  throw DeviceError(concat("cuda: ", what, ": ", cudnnGetErrorString(status), *more != '\0' ? ": " : "", more));
}

void check(cublasStatus_t status, const char* what) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cuda: ", what, ": ", cublasGetStatusString(status));
}

}  // namespace duet::cuda
