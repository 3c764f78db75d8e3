// CUDA's runtime as far as duet uses it, with the vendor's names, signatures and values; see ../simulator.h.
#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/include/device_code.h"

#define CUDART_VERSION 13000
#define cudaStreamNonBlocking 0x01
#define cudaGraphInstantiateFlagUseNodePriority 0x08
#define cudaEventDefault 0x00
#define cudaEventDisableTiming 0x02

// The errors that duet tells apart, and those that the simulator gives.
#define DUET_SIM_ERRORS(E)                                                                               \
  E(cudaSuccess, 0, "no error")                                                                          \
  E(cudaErrorInvalidValue, 1, "invalid argument")                                                        \
  E(cudaErrorMemoryAllocation, 2, "out of memory")                                                       \
  E(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                  \
  E(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                            \
  E(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")     \
  E(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                \
  E(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                        \
  E(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                               \
  E(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")    \
  E(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                               \
  E(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported between these two devices")       \
  E(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error detected during the execution")       \
  E(cudaErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.") \
  E(cudaErrorContained, 226, "memory contained error")                                                   \
  E(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                      \
  E(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")                \
  E(cudaErrorNotReady, 600, "device not ready")                                                          \
  E(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                            \
  E(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                              \
  E(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                            \
  E(cudaErrorAssert, 710, "device-side assert triggered")                                                \
  E(cudaErrorTooManyPeers, 711, "peer mapping resources exhausted")                                      \
  E(cudaErrorHardwareStackError, 714, "hardware stack error")                                            \
  E(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                          \
  E(cudaErrorMisalignedAddress, 716, "misaligned address")                                               \
  E(cudaErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")         \
  E(cudaErrorInvalidPc, 718, "invalid program counter")                                                  \
  E(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                           \
  E(cudaErrorTensorMemoryLeak, 721, "tensor memory not completely freed")                                \
  E(cudaErrorNotSupported, 801, "operation not supported")                                               \
  E(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")          \
  E(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")   \
  E(cudaErrorStreamCaptureMerge, 902, "operation would merge separate captures")                         \
  E(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")        \
  E(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                           \
  E(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")     \
  E(cudaErrorStreamCaptureImplicit, 906, "work of the legacy stream would depend on a capture")          \
  E(cudaErrorCapturedEvent, 907, "operation not permitted on an event of a capture")                     \
  E(cudaErrorStreamCaptureWrongThread, 908, "capture of one thread is ended by another")                 \
  E(cudaErrorUnknown, 999, "unknown error")

#define DUET_SIM_ENUMERATOR(name, value, text) name = value,
enum cudaError_t { DUET_SIM_ERRORS(DUET_SIM_ENUMERATOR) };
#undef DUET_SIM_ENUMERATOR
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrPciBusId = 33,
  cudaDevAttrPciDeviceId = 34,
  cudaDevAttrPciDomainId = 50
};
struct cudaDeviceProp {
  char name[256];
  struct {
    char bytes[16];
  } uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  struct CUstream_st* stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;

extern "C" {
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device);
cudaError_t cudaDriverGetVersion(int* driverVersion);
cudaError_t cudaRuntimeGetVersion(int* runtimeVersion);
cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice);
cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority);
cudaError_t cudaGetLastError(void);
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** devPtr, size_t size);
cudaError_t cudaFree(void* devPtr);
cudaError_t cudaMallocHost(void** ptr, size_t size);
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice, size_t count,
                                cudaStream_t stream = 0);
cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream = 0);

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
}

namespace duet_sim {

/// A word of a kernel's arguments that is a pointer, or may be one (inside a structure).
struct PointerArgument {
  const void* value;
  int argument;
  bool certain;
};
cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> call,
                          std::vector<PointerArgument> pointers);

template <class T>
void find_pointers(const T& argument, int number, std::vector<PointerArgument>& found) {
  static_assert(std::is_trivially_copyable_v<T>, "a kernel's arguments are copied as bytes");
  if constexpr (std::is_pointer_v<T>) {
    found.push_back({reinterpret_cast<const void*>(argument), number, true});
  } else if constexpr (std::is_class_v<T>) {
    // Padding may hold half of an old pointer. A compiler that cannot clear it checks no structure that has some: what
    // reaches freed memory through one is caught when it runs.
    T clean = argument;
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&clean);
#else
    if constexpr (!std::has_unique_object_representations_v<T>) return;
#endif
    for (std::size_t at = 0; at + sizeof(void*) <= sizeof(T); at += sizeof(void*)) {
      const void* word;
      __builtin_memcpy(&word, reinterpret_cast<const char*>(&clean) + at, sizeof word);
      found.push_back({word, number, false});
    }
  }
}

}  // namespace duet_sim

template <class... Expected, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Given&&... args) {
  std::tuple<std::remove_cv_t<Expected>...> values{static_cast<Expected>(std::forward<Given>(args))...};
  std::vector<duet_sim::PointerArgument> pointers;
  std::apply(
      [&](const auto&... value) {
        [[maybe_unused]] int n = 0;
        (duet_sim::find_pointers(value, n++, pointers), ...);
      },
      values);
  return duet_sim::launch_kernel(
      *config, reinterpret_cast<const void*>(kernel), [kernel, values] { std::apply(kernel, values); },
      std::move(pointers));
}
