#include "lib/backend/cuda/cuda_recorder.h"

#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/backend/cuda/memory.h"

namespace duet::cuda {
namespace {

std::atomic<int> newest_number = 0;

}  // namespace

void CudaRecorder::begin(std::uint64_t step, std::uint64_t steps) {
  require<UsageError>(number_ == 0, device_.device(), " is recording a step already");
  device_.activate();
  if (counter_ == nullptr) {
    counter_ = static_cast<std::uint64_t*>(device_.memory().allocate(sizeof(std::uint64_t)));
    // Also loads the kernels: a kernel is loaded at its first launch, which should not be while recording.
    kernels::set_counter(counter_, step, device_.stream());
    kernels::advance(counter_, steps, device_.stream());
  }
  require<UsageError>(recording_of_thread() == 0, "this thread is recording a step already");
  const int number = recording_of_thread() = ++newest_number;
  device_.memory().begin_recording(number);
  step_ = step;
  steps_ = steps;
  // Other threads may allocate and wait meanwhile; this one may only take memory from the pool.
  const cudaError_t status = cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal);
  if (status != cudaSuccess) {
    recording_of_thread() = 0;
    device_.memory().end_recording();
    device_.memory().drop_recording(number);
  }
  check(status, "recording a step");
  number_ = number;
}

int CudaRecorder::end() {
  require<UsageError>(number_ != 0, device_.device(), " is not recording a step");
  cudaGraphExec_t graph = nullptr;
  try {
    kernels::advance(counter_, steps_, device_.stream());
    graph = finish_capture();
  } catch (...) {
    cancel();
    throw;
  }
  const int number = number_.exchange(0);
  recording_of_thread() = 0;
  device_.memory().end_recording();
  graphs_.emplace(number, Graph{graph, steps_, std::exchange(works_, {})});
  return number;
}

void CudaRecorder::attach(std::shared_ptr<RecordedWork> work) {
  require<UsageError>(number_ != 0, device_.device(), " is not recording a step");
  works_.push_back(std::move(work));
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
  const int number = number_.exchange(0);
  if (number == 0) return;
  recording_of_thread() = 0;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(device_.stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();  // clears the error of the invalidated capture
  device_.memory().end_recording();
  device_.memory().drop_recording(number);
  works_.clear();
}

/// Launches the graph inside the replay() of every work.
void CudaRecorder::launch(const Graph& graph, std::size_t works_done) {
  if (works_done == graph.works.size())
    check(cudaGraphLaunch(graph.executable, device_.stream()), "replaying a step");
  else
    graph.works[works_done]->replay([&] { launch(graph, works_done + 1); });
}

void CudaRecorder::replay(int recording, std::uint64_t step) {
  const auto graph = graphs_.find(recording);
  require<UsageError>(graph != graphs_.end(), device_.device(), " has no recording ", recording);
  set_current_operator("a recorded step");
  device_.activate();
  if (counted_ != step) kernels::set_counter(counter_, step, device_.stream());
  counted_.reset();
  launch(graph->second, 0);
  counted_ = step + graph->second.steps;
}

void CudaRecorder::drop(int recording) noexcept {
  const auto graph = graphs_.find(recording);
  if (graph == graphs_.end()) return;
  cudaStreamSynchronize(device_.stream());  // the next call on the device reports a failure
  cudaGraphExecDestroy(graph->second.executable);
  cudaGetLastError();
  graphs_.erase(graph);
  device_.memory().drop_recording(recording);
}

kernels::StepDraw CudaRecorder::counted(arithmetic::DropoutDraw draw) const {
  if (number_ == 0) return {draw, nullptr};
  draw.step -= step_;
  return {draw, counter_};
}

kernels::StepDraw CudaDevice::draw(const DropoutKey& key, const Rows& rows) {
  return recorder().counted({.seed = key.seed,
                             .step = key.step,
                             .first_row = static_cast<std::uint64_t>(rows.first),
                             .layer = key.layer,
                             .threshold = key.threshold()});
}

}  // namespace duet::cuda
