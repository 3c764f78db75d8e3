// Steps as CUDA graphs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/step_graph.h"

namespace duet::cuda {

class CudaRecorder final : public StepRecorder {
 public:
  explicit CudaRecorder(CudaDevice& device) : device_(device) {}

  void begin(std::uint64_t step, std::uint64_t steps) override;
  int end() override;
  void cancel() noexcept override;
  int recording() const override { return number_; }
  void attach(std::shared_ptr<RecordedWork> work) override;
  void replay(int recording, std::uint64_t step) override;
  void drop(int recording) noexcept override;

  /// The draw of a dropout enqueued now. While a step is recorded its kernels add the counter.
  kernels::StepDraw counted(arithmetic::DropoutDraw draw) const;

 private:
  using Works = std::vector<std::shared_ptr<RecordedWork>>;
  struct Graph {
    cudaGraphExec_t executable = nullptr;
    std::uint64_t steps = 1;
    Works works{};
  };
  cudaGraphExec_t finish_capture();
  void launch(const Graph& graph, std::size_t works_done);

  CudaDevice& device_;
  std::atomic<int> number_ = 0;  // of the recording that runs, with the step in which it was begun; 0: none runs
  std::uint64_t step_ = 0, steps_ = 1;
  Works works_;                            // of the recording that runs
  std::unordered_map<int, Graph> graphs_;  // by recording
  std::uint64_t* counter_ = nullptr;       // on the device: the step that the next replay is
  std::optional<std::uint64_t> counted_;   // the counter's value after all work enqueued so far
};

}  // namespace duet::cuda
