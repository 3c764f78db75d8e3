// Steps as CUDA graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/cuda/device_table.h"
#include "lib/backend/step_graph.h"

namespace duet::cuda {

/// The first device's recorder leads a recording of several: it holds the graph, the others only their dropout counter.
class CudaRecorder final : public StepRecorder {
 public:
  /// `operators` compute on the table's devices.
  CudaRecorder(Backend& operators, DeviceTable& table, CudaDevice& device)
      : operators_(operators), table_(table), device_(device) {}

  void begin(std::uint64_t step, std::uint64_t steps, std::span<const Device> others) override;
  void take_part(FunctionRef<void()> work) override;
  int end() override;
  void cancel() noexcept override;
  int recording() const override { return device_.recording(); }
  void attach(std::shared_ptr<RecordedWork> work) override;
  void replay(int recording, std::uint64_t step) override;
  void drop(int recording) noexcept override;

  /// A dropout's draw for the kernels, of rows with this stamp. While a step is recorded, kernels add the counter.
  kernels::StepDraw draw(const DropoutKey& key, const Rows& rows) const;

 private:
  using Works = std::vector<std::shared_ptr<RecordedWork>>;
  struct Graph {
    cudaGraphExec_t executable = nullptr;
    std::uint64_t steps = 1;
    std::vector<CudaDevice*> devices{};  // this one first
    std::vector<std::uint64_t> moved{};  // bytes that a replay copies to and from each
    Works works{};
  };
  std::vector<CudaDevice*> devices_of(std::span<const Device> others) const;
  /// Makes the handles that the recording's branches need and uses each once, because the first use of one may
  /// allocate.
  void prepare_branches();
  /// This device becomes a part of the leader's recording.
  void enter(CudaRecorder& leader, int number, std::uint64_t step);
  /// It is no longer. Returns the bytes that were copied to and from it meanwhile.
  std::uint64_t leave();
  cudaGraphExec_t finish_capture();
  void set_counter(std::uint64_t step);
  void launch(const Graph& graph, std::size_t works_done);

  Backend& operators_;
  DeviceTable& table_;
  CudaDevice& device_;
  // The recording that runs on this device, with the step in which it was begun:
  CudaRecorder* leader_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint64_t moved_before_ = 0;  // bytes that the device had copied when it entered the recording
  // The recording that this recorder leads:
  std::uint64_t steps_ = 1;
  std::vector<CudaDevice*> devices_;
  Works works_;
  std::mutex turn_;                        // held by one at a time of the threads that take part
  std::unordered_map<int, Graph> graphs_;  // by recording
  std::uint64_t* counter_ = nullptr;       // on the device: the step that the next replay is
  std::optional<std::uint64_t> counted_;   // the counter's value after all work enqueued so far
};

}  // namespace duet::cuda
