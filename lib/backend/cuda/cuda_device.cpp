#include "lib/backend/cuda/cuda_device.h"

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "lib/base/environment.h"
#include "lib/tensor.h"

namespace duet::cuda {
namespace {

// The size that NVIDIA recommends for Hopper; fixed, because cuBLAS must not allocate while a graph is recorded.
constexpr std::int64_t kCublasWorkspaceBytes = std::int64_t{32} << 20;

/// A library's handle until it is set up.
template <class Handle, class Status>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Status (*)(Handle)>;

/// The device in whose branch the thread is.
thread_local const CudaDevice* branching = nullptr;

class InBranch {
 public:
  explicit InBranch(const CudaDevice& device) { branching = &device; }
  ~InBranch() { branching = nullptr; }
  InBranch(const InBranch&) = delete;
  InBranch& operator=(const InBranch&) = delete;
};

/// A handle allocates when it is made, and its workspace would belong to the recording's memory.
void require_no_recording(const char* library, const CudaDevice& device) {
  require<UsageError>(device.recording() == 0, library,
                      " is first used while a step is recorded: run the step once before");
}

}  // namespace

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void require_no_override(Precision precision) {
  const auto value = environment_variable("NVIDIA_TF32_OVERRIDE");
  if (!value) return;
  const bool forbids = *value == "0";  // else it demands TF32
  require<DeviceError>(precision != (forbids ? Precision::tf32 : Precision::fp32), "NVIDIA_TF32_OVERRIDE=", *value,
                       " makes NVIDIA's libraries compute ", forbids ? "without" : "with",
                       " TF32 whatever their settings, but precision ", name(precision),
                       " is set: unset that variable, or choose another precision");
}

CudaDevice::CudaDevice(const Settings& settings, Device device) : settings_(settings), device_(device) {
  activate();
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  for (Lane* const lane : {&main_, &branch_})
    check(cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, least), "cudaStreamCreateWithPriority");
  void* fault = nullptr;
  check(cudaMallocHost(&fault, sizeof(kernels::LabelFault)), "cudaMallocHost");
  label_fault_ = new (fault) kernels::LabelFault{};
}

void CudaDevice::equip(std::shared_ptr<DeviceMemory> memory, std::shared_ptr<CudaRecorder> recorder) {
  memory_ = std::move(memory);
  recorder_ = std::move(recorder);
}

void CudaDevice::activate() const {
  int current = -1;  // queried each time: other libraries change it too
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current != physical()) check(cudaSetDevice(physical()), "cudaSetDevice");
}

cudnnHandle_t CudaDevice::cudnn() {
  Lane& lane = in_branch() ? branch_ : main_;
  if (lane.cudnn == nullptr) make_cudnn(lane);
  return lane.cudnn;
}

void CudaDevice::make_cudnn(Lane& lane) {
  require_no_recording("cuDNN", *this);
  require_no_override(precision());
  const auto major = static_cast<int>(cudnnGetVersion() / 10000);
  require<DeviceError>(major == CUDNN_MAJOR, "cuDNN ", cudnnGetVersion(), " was found, but duet was built for cuDNN ",
                       CUDNN_MAJOR);
  activate();
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  Owned<cudnnHandle_t, cudnnStatus_t> owned(handle, cudnnDestroy);
  check(cudnnSetStream(handle, lane.stream), "cudnnSetStream");
  lane.cudnn = owned.release();
}

cublasHandle_t CudaDevice::cublas() {
  Lane& lane = in_branch() ? branch_ : main_;
  if (lane.cublas == nullptr) make_cublas(lane);
  return lane.cublas;
}

void CudaDevice::make_cublas(Lane& lane) {
  require_no_recording("cuBLAS", *this);
  require_no_override(precision());
  int major = 0;
  check(cublasGetProperty(MAJOR_VERSION, &major), "cublasGetProperty");
  require<DeviceError>(major == CUBLAS_VER_MAJOR, "cuBLAS ", major, " was found, but duet was built for cuBLAS ",
                       CUBLAS_VER_MAJOR);
  activate();
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  Owned<cublasHandle_t, cublasStatus_t> owned(handle, cublasDestroy);
  check(cublasSetStream(handle, lane.stream), "cublasSetStream");
  // Else cuBLAS allocates its workspace when it is first used, which may be in a recording.
  lane.workspace = empty({kCublasWorkspaceBytes}, DType::u8, device_);
  check(cublasSetWorkspace(handle, lane.workspace.raw(), lane.workspace.bytes()), "cublasSetWorkspace");
  lane.cublas = owned.release();
}

cudaEvent_t CudaDevice::take_event() {
  {
    const std::lock_guard lock(events_mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  activate();  // an event belongs to the GPU on which it is made
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void CudaDevice::give_event(cudaEvent_t event) {
  const std::lock_guard lock(events_mutex_);
  events_.push_back(event);
}

cudaEvent_t CudaDevice::record_event() {
  activate();
  const cudaEvent_t event = take_event();
  check(cudaEventRecord(event, main_.stream), "cudaEventRecord");
  return event;
}

void CudaDevice::wait_for(cudaEvent_t event) {
  activate();
  check(cudaStreamWaitEvent(main_.stream, event, 0), "cudaStreamWaitEvent");
}

void CudaDevice::wait_for(CudaDevice& other) {
  if (&other == this) return;
  require<UsageError>(recording() == other.recording(), device_, " and ", other.device_,
                      " are not parts of one recording, so work on one cannot depend on the other");
  const cudaEvent_t event = other.record_event();
  wait_for(event);
  // A wait refers to what the event recorded when the wait was enqueued, so the event can be reused at once.
  other.give_event(event);
}

void join_streams(std::span<CudaDevice* const> devices) {
  for (CudaDevice* const other : devices.subspan(1)) devices[0]->wait_for(*other);
}

void fork_streams(std::span<CudaDevice* const> devices) {
  if (devices.size() < 2) return;
  const cudaEvent_t event = devices[0]->record_event();
  for (CudaDevice* const other : devices.subspan(1)) other->wait_for(event);
  devices[0]->give_event(event);
}

void CudaDevice::order(cudaStream_t first, cudaStream_t second) {
  activate();
  const cudaEvent_t event = take_event();
  check(cudaEventRecord(event, first), "cudaEventRecord");
  check(cudaStreamWaitEvent(second, event, 0), "cudaStreamWaitEvent");
  give_event(event);
}

bool CudaDevice::in_branch() const { return branching == this; }

void CudaDevice::beside(FunctionRef<void()> branch, FunctionRef<void()> rest) {
  if (recording() != 0) return fork(branch, rest);
  branch();
  rest();
}

void CudaDevice::fork(FunctionRef<void()> branch, FunctionRef<void()> rest) {
  order(main_.stream, branch_.stream);
  {
    const InBranch inside(*this);
    branch();
  }
  rest();
  order(branch_.stream, main_.stream);
}

void CudaDevice::synchronize() {
  activate();
  check(cudaStreamSynchronize(main_.stream), "synchronize");
  throw_fault();
}

void CudaDevice::throw_fault() {
  // Written by the GPU, and read after waiting for it.
  const volatile kernels::LabelFault& seen = *label_fault_;
  if (seen.seen == 0) return;
  const kernels::LabelFault fault = {1, seen.label, seen.row, seen.classes};
  *label_fault_ = {};
  throw ShapeError(concat("nll_loss: Target ", fault.label, " is out of bounds. (row ", fault.row, ", expected 0 to ",
                          fault.classes - 1, ")"));
}

}  // namespace duet::cuda
