// The resources of one duet device on a GPU: its stream, its memory and its libraries' handles.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/launch.h"
#include "lib/base/threads.h"

namespace duet::cuda {

class ConvPlans;
class CudaBackend;
class CudaRecorder;
class DeviceMemory;

/// Whether what is asked of the stream now becomes part of a graph.
bool is_capturing(cudaStream_t stream);

/// One per duet Device, made when first used and never destroyed: at exit the driver may be gone before statics are. A
/// logical device has its own stream, handles and memory on the GPU that it shares. Kernels are launched by one thread
/// at a time; copies and memory are requested by any.
class CudaDevice {
 public:
  CudaDevice(CudaBackend& backend, Device device, int physical);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Device device() const { return device_; }
  /// The GPU's number.
  int physical() const { return physical_; }
  int multiprocessors() const { return multiprocessors_; }
  /// The compute stream; everything of this device is ordered on it. For a thread inside of a branch: the branch's.
  cudaStream_t stream() const { return in_branch() ? branch_.stream : main_.stream; }
  /// Calls branch(), then rest(): neither may use what the other enqueues, or memory that the other releases and did
  /// not allocate. While a step is recorded, these are two branches of the graph, and what is enqueued next waits for
  /// both.
  void beside(FunctionRef<void()> branch, FunctionRef<void()> rest);
  /// Makes the handles that a recording's branches need and uses each once, because the first use of one may allocate;
  /// before each recording.
  void prepare_branches();
  /// Whether the calling thread is inside of a branch, in a recording.
  bool in_branch() const;
  /// The libraries' handles on stream(), made when first needed. Throw UsageError for the first use of a library in a
  /// recording.
  cudnnHandle_t cudnn();
  cublasHandle_t cublas();
  DeviceMemory& memory() { return *memory_; }
  const DeviceMemory& memory() const { return *memory_; }
  Precision precision() const;
  /// Whether algorithms are chosen without timing them.
  bool deterministic() const;
  /// The convolutions prepared so far.
  ConvPlans& conv_plans();
  /// Records steps.
  CudaRecorder& recorder() { return *recorder_; }
  /// A dropout's draw for the kernels, of rows with this stamp; also of a step that is being recorded.
  kernels::StepDraw draw(const DropoutKey& key, const Rows& rows);

  /// Makes this GPU the calling thread's current one.
  void activate() const;
  /// Orders all work enqueued on this device from now on after all work enqueued on `other` so far. The host does not
  /// wait. Throws UsageError when only one of the two is part of a recording.
  void wait_for(CudaDevice& other);
  /// Orders all work enqueued on `second` from now on after all work enqueued on `first` so far: streams of this GPU.
  void order(cudaStream_t first, cudaStream_t second);
  /// Returns when all work enqueued on this device is done; then checks for faults.
  void synchronize();

  /// In pinned host memory, for the kernels that read labels.
  kernels::LabelFault* label_fault() { return label_fault_; }
  /// Throws what a kernel reported since the last check: ShapeError for a label out of bounds. After a synchronisation.
  void throw_fault();

 private:
  friend void fork_streams(std::span<CudaDevice* const> devices);
  cudaEvent_t take_event();
  void give_event(cudaEvent_t event);
  /// An event after all work enqueued so far; to be given back when all waits for it are enqueued.
  cudaEvent_t record_event();
  void wait_for(cudaEvent_t event);
  /// A stream, and the handles that enqueue on it. A handle keeps device memory, which must not be used by two streams
  /// at the same time.
  struct Lane {
    cudaStream_t stream = nullptr;
    cudnnHandle_t cudnn = nullptr;
    cublasHandle_t cublas = nullptr;
  };
  void make_cudnn(Lane& lane);
  void make_cublas(Lane& lane);

  CudaBackend& backend_;
  Device device_;
  int physical_;
  int multiprocessors_ = 0;
  Lane main_, branch_;
  std::unique_ptr<DeviceMemory> memory_;
  std::shared_ptr<ConvPlans> conv_plans_;  // shared only because their types are not known here
  std::shared_ptr<CudaRecorder> recorder_;
  kernels::LabelFault* label_fault_ = nullptr;
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> events_;
};

/// Orders all work enqueued on the first device from now on after all work enqueued on the others so far.
void join_streams(std::span<CudaDevice* const> devices);
/// Orders all work enqueued on the others from now on after all work enqueued on the first device so far.
void fork_streams(std::span<CudaDevice* const> devices);

}  // namespace duet::cuda
