// The resources of one duet device on a GPU: its stream, its memory and its libraries' handles.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/launch.h"
#include "lib/base/function_ref.h"
#include "lib/base/threads.h"
#include "lib/tensor.h"

namespace duet::cuda {

class ConvPlans;
class CudaRecorder;
class DeviceMemory;

/// Whether what is asked of the stream now becomes part of a graph.
bool is_capturing(cudaStream_t stream);

/// Holds the settings of all devices of the process.
struct Settings {
  std::atomic<Precision> precision{Precision::fp32};
  /// Whether algorithms are chosen without timing them.
  std::atomic<bool> deterministic{false};
};

/// The variable NVIDIA_TF32_OVERRIDE takes precedence over the settings of NVIDIA's libraries. Throws DeviceError where
/// it would make them compute in another precision than this.
void require_no_override(Precision precision);

/// One per duet Device, made when first used and never destroyed: at exit the driver may be gone before statics are. A
/// logical device has its own stream, handles and memory on the GPU that it shares. Kernels are launched by one thread
/// at a time; copies and memory are requested by any.
class CudaDevice {
 public:
  CudaDevice(const Settings& settings, Device device);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  /// Gives the device what is built on it; once, before anything else is asked of it.
  void equip(std::shared_ptr<DeviceMemory> memory, std::shared_ptr<CudaRecorder> recorder);

  Device device() const { return device_; }
  /// The GPU's number.
  int physical() const { return device_.index; }
  /// The compute stream; everything of this device is ordered on it. For a thread inside of a branch: the branch's.
  cudaStream_t stream() const { return in_branch() ? branch_.stream : main_.stream; }
  /// Calls branch(), then rest(): neither may use what the other enqueues, or memory that the other releases and did
  /// not allocate. While a step is recorded, these are two branches of the graph, and what is enqueued next waits for
  /// both.
  void beside(FunctionRef<void()> branch, FunctionRef<void()> rest);
  /// Runs `branch` on the branch's stream and `rest` on the main one, whether or not a step is recorded.
  void fork(FunctionRef<void()> branch, FunctionRef<void()> rest);
  /// Whether the main stream has a handle of the library and the branch's has none yet.
  bool branch_lacks_cudnn() const { return main_.cudnn != nullptr && branch_.cudnn == nullptr; }
  bool branch_lacks_cublas() const { return main_.cublas != nullptr && branch_.cublas == nullptr; }
  /// Whether the calling thread is inside of a branch, in a recording.
  bool in_branch() const;
  /// The libraries' handles on stream(), made when first needed. Throw UsageError for the first use of a library in a
  /// recording.
  cudnnHandle_t cudnn();
  cublasHandle_t cublas();
  DeviceMemory& memory() { return *memory_; }
  const DeviceMemory& memory() const { return *memory_; }
  Precision precision() const { return settings_.precision; }
  bool deterministic() const { return settings_.deterministic; }
  /// The convolutions prepared so far.
  ConvPlans& conv_plans();
  /// Records steps.
  CudaRecorder& recorder() { return *recorder_; }
  /// The number of the recording of which this device is a part now; 0 if there is none. For any thread.
  int recording() const { return recording_; }
  void set_recording(int number) { recording_ = number; }
  /// Counts bytes that were copied between this device and another place; a recording's count when it is replayed.
  void count_moved(std::uint64_t bytes) { moved_ += bytes; }
  void uncount_moved(std::uint64_t bytes) { moved_ -= bytes; }
  std::uint64_t moved() const { return moved_; }

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
    Tensor workspace{};  // cuBLAS's
  };
  void make_cudnn(Lane& lane);
  void make_cublas(Lane& lane);

  const Settings& settings_;
  const Device device_;
  Lane main_, branch_;
  // Shared only because their types are not known here.
  std::shared_ptr<DeviceMemory> memory_;
  std::shared_ptr<ConvPlans> conv_plans_;
  std::shared_ptr<CudaRecorder> recorder_;
  std::atomic<int> recording_ = 0;
  std::atomic<std::uint64_t> moved_{0};
  kernels::LabelFault* label_fault_ = nullptr;
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> events_;
};

/// Orders all work enqueued on the first device from now on after all work enqueued on the others so far.
void join_streams(std::span<CudaDevice* const> devices);
/// Orders all work enqueued on the others from now on after all work enqueued on the first device so far.
void fork_streams(std::span<CudaDevice* const> devices);

}  // namespace duet::cuda
