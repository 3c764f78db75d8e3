#include "lib/backend/cuda/cuda_recorder.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/cuda/device_table.h"
#include "lib/backend/cuda/memory.h"

namespace duet::cuda {
namespace {

std::atomic<int> newest_number = 0;

/// Makes the calling thread one of a recording's.
class InRecording {
 public:
  explicit InRecording(int number) : before_(std::exchange(recording_of_thread(), number)) {}
  ~InRecording() { recording_of_thread() = before_; }
  InRecording(const InRecording&) = delete;
  InRecording& operator=(const InRecording&) = delete;

 private:
  int before_;
};

}  // namespace

std::vector<CudaDevice*> CudaRecorder::devices_of(std::span<const Device> others) const {
  std::vector<CudaDevice*> devices{&device_};
  for (const Device other : others) devices.push_back(&table_.find(other));
  for (auto device = devices.begin(); device != devices.end(); ++device) {
    require<UsageError>(std::find(devices.begin(), device, *device) == device, "a recording names ",
                        (*device)->device(), " twice");
    require<UsageError>((*device)->recording() == 0, (*device)->device(), " is recording a step already");
  }
  require<UsageError>(recording_of_thread() == 0, "this thread is recording a step already");
  require<DeviceError>(table_.can_access_all(devices), "a graph cannot hold the work of ", devices.size(),
                       " devices of which not all can access each other's memory");
  return devices;
}

void CudaRecorder::begin(std::uint64_t step, std::uint64_t steps, std::span<const Device> others) {
  std::vector<CudaDevice*> devices = devices_of(others);
  for (CudaDevice* const device : devices) {
    CudaRecorder& recorder = device->recorder();
    if (recorder.counter_ != nullptr) continue;
    recorder.counter_ = static_cast<std::uint64_t*>(device->memory().allocate(sizeof(std::uint64_t)));
    // Also loads the kernels: a kernel is loaded at its first launch, which should not be while recording.
    recorder.set_counter(step);
    kernels::advance(recorder.counter_, steps, device->stream());
  }
  for (CudaDevice* const device : devices) device->recorder().prepare_branches();
  devices_ = std::move(devices);
  steps_ = steps;
  const int number = recording_of_thread() = ++newest_number;
  for (CudaDevice* const device : devices_) device->recorder().enter(*this, number, step);
  try {
    device_.activate();
    // Other threads may allocate and wait meanwhile; this one may only take memory from the pool.
    check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal), "recording a step");
    fork_streams(devices_);
  } catch (...) {
    cancel();
    throw;
  }
}

void CudaRecorder::prepare_branches() {
  const bool convolves = device_.branch_lacks_cudnn(), multiplies = device_.branch_lacks_cublas();
  if (!convolves && !multiplies) return;
  const auto zeros_of = [this](const Shape& shape) { return zeros(shape, DType::f32, device_.device()); };
  const auto use_each = [&] {
    if (convolves) {
      const Tensor x = zeros_of({1, 8, 8, 8}), w = zeros_of({8, 8, 3, 3});
      operators_.conv2d_backward_weights(x, x, w, {}, {3, 3, 1, 1, 1, 1});
    }
    if (multiplies) {
      const Tensor x = zeros_of({8, 8}), y = zeros_of({8, kernels::kMostOutputs + 8}), w = zeros_of({y.size(1), 8});
      operators_.linear_backward(y, x, w, {}, w, {});
    }
  };
  device_.fork(use_each, [] {});
}

void CudaRecorder::enter(CudaRecorder& leader, int number, std::uint64_t step) {
  device_.memory().begin_recording(number);
  moved_before_ = device_.moved();
  leader_ = &leader;
  step_ = step;
  device_.set_recording(number);
}

std::uint64_t CudaRecorder::leave() {
  device_.set_recording(0);
  leader_ = nullptr;
  device_.memory().end_recording();
  const std::uint64_t moved = device_.moved() - moved_before_;
  device_.uncount_moved(moved);  // nothing ran
  return moved;
}

void CudaRecorder::take_part(FunctionRef<void()> work) {
  if (recording() == 0) return work();
  const std::lock_guard lock(turn_);  // graph objects are not thread-safe
  const InRecording mark(recording());
  work();
}

int CudaRecorder::end() {
  require<UsageError>(leader_ == this, device_.device(), " is not recording a step");
  cudaGraphExec_t graph = nullptr;
  try {
    for (CudaDevice* const device : devices_) {
      device->activate();
      kernels::advance(device->recorder().counter_, steps_, device->stream());
    }
    join_streams(devices_);
    graph = finish_capture();
  } catch (...) {
    cancel();
    throw;
  }
  const int number = recording();
  recording_of_thread() = 0;
  std::vector<std::uint64_t> moved;
  for (CudaDevice* const device : devices_) moved.push_back(device->recorder().leave());
  graphs_.emplace(number, Graph{graph, steps_, std::move(devices_), std::move(moved), std::exchange(works_, {})});
  return number;
}

void CudaRecorder::attach(std::shared_ptr<RecordedWork> work) {
  require<UsageError>(leader_ != nullptr, device_.device(), " is not recording a step");
  leader_->works_.push_back(std::move(work));
}

cudaGraphExec_t CudaRecorder::finish_capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(device_.stream(), &graph), "recording a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  check(status, "making a graph of a step");
  return executable;
}

void CudaRecorder::cancel() noexcept {
  if (leader_ != this) return;
  try {
    join_streams(devices_);  // so that the end of the capture frees all streams
  } catch (...) {            // the capture is invalid, which frees them too
  }
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(device_.stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();  // clears the error of the invalidated capture
  const int number = recording();
  recording_of_thread() = 0;
  for (CudaDevice* const device : devices_) {
    device->recorder().leave();
    device->memory().drop_recording(number);
  }
  works_.clear();
}

/// Launches the graph inside the replay() of every work.
void CudaRecorder::launch(const Graph& graph, std::size_t works_done) {
  if (works_done < graph.works.size()) return graph.works[works_done]->replay([&] { launch(graph, works_done + 1); });
  join_streams(graph.devices);
  device_.activate();
  check(cudaGraphLaunch(graph.executable, device_.stream()), "replaying a step");
  fork_streams(graph.devices);
}

void CudaRecorder::set_counter(std::uint64_t step) {
  device_.activate();
  kernels::set_counter(counter_, step, device_.stream());
}

void CudaRecorder::replay(int recording, std::uint64_t step) {
  const auto found = graphs_.find(recording);
  require<UsageError>(found != graphs_.end(), device_.device(), " has no recording ", recording);
  const Graph& graph = found->second;
  set_current_operator("a recorded step");
  for (CudaDevice* const device : graph.devices) {
    CudaRecorder& recorder = device->recorder();
    if (recorder.counted_ != step) recorder.set_counter(step);
    recorder.counted_.reset();
  }
  device_.activate();
  launch(graph, 0);
  for (std::size_t i = 0; i < graph.devices.size(); ++i) {
    graph.devices[i]->recorder().counted_ = step + graph.steps;
    graph.devices[i]->count_moved(graph.moved[i]);
  }
}

void CudaRecorder::drop(int recording) noexcept {
  const auto graph = graphs_.find(recording);
  if (graph == graphs_.end()) return;
  cudaStreamSynchronize(device_.stream());  // the next call on the device reports a failure
  cudaGraphExecDestroy(graph->second.executable);
  cudaGetLastError();
  for (CudaDevice* const device : graph->second.devices) device->memory().drop_recording(recording);
  graphs_.erase(graph);
}

kernels::StepDraw CudaRecorder::draw(const DropoutKey& key, const Rows& rows) const {
  const bool counts = recording() != 0;
  return {{.seed = key.seed,
           .step = counts ? key.step - step_ : key.step,
           .first_row = static_cast<std::uint64_t>(rows.first),
           .layer = key.layer,
           .threshold = key.threshold()},
          counts ? counter_ : nullptr};
}

}  // namespace duet::cuda
