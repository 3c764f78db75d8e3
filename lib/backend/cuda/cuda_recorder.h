// Steps as CUDA graphs.
#pragma once

#include <optional>
#include <unordered_map>

#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/step_recorder.h"

namespace duet::cuda {

class CudaRecorder final : public StepRecorder {
 public:
  explicit CudaRecorder(CudaDevice& device) : device_(device) {}

  void begin(std::uint64_t step) override;
  int end() override;
  void cancel() noexcept override;
  void replay(int recording, std::uint64_t step) override;
  void drop(int recording) noexcept override;

  /// The draw of a dropout that is asked for now. While a step is recorded its kernels add the counter.
  kernels::StepDraw counted(arithmetic::DropoutDraw draw) const;

 private:
  cudaGraphExec_t finish_capture();

  CudaDevice& device_;
  bool recording_ = false;
  int number_ = 0;  // of the recording that runs, with the step in which it was begun
  std::uint64_t step_ = 0;
  std::unordered_map<int, cudaGraphExec_t> graphs_;  // by recording
  std::uint64_t* counter_ = nullptr;                 // on the device: the step that the next replay is
  std::optional<std::uint64_t> counted_;             // what the counter will hold after all that was asked
};

}  // namespace duet::cuda
