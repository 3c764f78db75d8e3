// A training step that is recorded once and replayed: on a GPU one launch in place of dozens.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/step_recorder.h"
#include "lib/base/function_ref.h"
#include "lib/tensor.h"

namespace duet {

/// The key of a recording: steps with equal keys are replays of one.
struct StepKey {
  std::int64_t rows = 0;   // of the batch on this device
  Rows stamp = {};         // of the batch; its step may differ
  float lr = 0;            // or whatever number the host gives to kernels and changes on the way
  std::int64_t steps = 1;  // consecutive ones that are recorded together; the stamp is the first one's
};

/// Runs the steps of a loop over one device. The first of each batch shape, and the first two of all, run as they are:
/// that prepares what must not happen while recording (plans, loading of kernels), and an optimizer's first step is not
/// like the others. The next of each key is recorded and replayed, all others are replays, with the same bits:
///
///     StepGraph graph(device);
///     for (auto at = loader.begin(); at != loader.end(); ++at)
///       graph.run({loader.rows(), loader.stamp(), opt.lr()}, [&] {
///         auto [images, labels] = loader.batch();
///         ...
///         return loss.value();
///       });
///     const double mean = graph.take_loss_sum() / steps;
///
/// The step finds its batch at the same addresses each time, or makes it (data::Loader::batch with `deferred`). Its
/// batch is stamped, so that dropout reads its step. It does not copy to or from the host, and what it changes on the
/// host (counters, flags) changes in runs as it is and when recorded only. Values that it keeps are overwritten by the
/// next step of their key. Used by the device's thread.
///
/// Ranks of ddp may record their collectives where NCCL carries them, as long as all of them run the same keys in the
/// same order: NCCL requires an operation captured, and a graph launched, by all ranks or none. Steps of several
/// devices of one process (dp) stay plain: NCCL warns that launching their graphs may deadlock, and a recording holds
/// the work of one device only.
class StepGraph {
 public:
  /// Throws UsageError for devices that record nothing: CPUs.
  explicit StepGraph(Device device);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// `step` returns its loss, one f32 on the device. What it throws is passed on; the device is then as if a recorded
  /// step had not been asked for, and the key is tried again next time.
  void run(const StepKey& key, FunctionRef<Tensor()> step);
  /// As run() for key.steps steps at once: `step(i)` is the i-th, and one launch replays all of them.
  void run_several(const StepKey& key, FunctionRef<Tensor(std::int64_t i)> step);
  /// The sum of the losses of all steps since it was last taken, added up on the device in f32. Waits for the device.
  double take_loss_sum();

  /// Recordings made so far, and steps that were replays.
  std::int64_t recordings() const { return recordings_; }
  std::int64_t replays() const { return replays_; }

 private:
  struct Entry {
    StepKey key;
    Precision precision;
    int recording = 0;  // 0: none yet
    bool ran = false;
    std::uint64_t used = 0;  // when it last ran
  };
  Entry& entry_of(const StepKey& key);
  bool prepared(const Entry& entry) const;
  void run_all(std::int64_t steps, FunctionRef<Tensor(std::int64_t)> step);

  Device device_;
  StepRecorder& recorder_;
  Tensor loss_sum_;
  std::vector<Entry> entries_;
  std::uint64_t runs_ = 0;
  std::int64_t recordings_ = 0, replays_ = 0;
};

}  // namespace duet
