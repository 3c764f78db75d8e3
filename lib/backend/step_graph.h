// A training step that is recorded once and replayed: on a GPU one launch, of a CUDA graph, in place of dozens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/base/function_ref.h"
#include "lib/tensor.h"

namespace duet {

/// Work of other parts, such as collectives, that is in a recording and must be notified of each replay.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  /// Called by the device's thread, for every replay. Calls `launch`, which launches the whole recording;
  /// throws, before that, where the work can no longer be done.
  virtual void replay(FunctionRef<void()> launch) = 0;
};

/// The recordings that begin on one device; used by the thread that launches its kernels. A recording may hold the work
/// of other devices too, whose threads take_part().
///
/// Between begin() and end() no launched work runs: it is recorded with its addresses and
/// numbers. What the host computes or decides meanwhile is decided for all replays. Memory that
/// the threads of the recording allocate on its devices belongs to the recording until it is dropped, so that each
/// replay finds its own; what lies there is that of the last replay. Copies between the devices and the host, waiting
/// for the devices, and copies between one of them and another device throw.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// Starts recording `steps` consecutive steps, the first of which is `step` (DropoutKey::step), of this device and of
  /// `others`. Throws UsageError when a recording runs on one of them or in this thread, DeviceError unless all of them
  /// can access each other's memory.
  virtual void begin(std::uint64_t step, std::uint64_t steps = 1, std::span<const Device> others = {}) = 0;
  /// Calls `work`, in which another thread than that of begin() launches a part of the recording that runs; such calls
  /// run one after the other. While none runs it only calls.
  virtual void take_part(FunctionRef<void()> work) = 0;
  /// Ends it, in the thread that began it, and returns its number. Throws DeviceError, as after cancel(), when
  /// something could not be recorded.
  virtual int end() = 0;
  /// Discards the recording that runs, if one does. The devices are as if nothing had been launched.
  virtual void cancel() noexcept = 0;
  /// The number of the recording of which this device is a part now, and which no other has; 0 if there is none. For
  /// any thread.
  virtual int recording() const = 0;
  /// Puts `work` into the recording that runs, which holds it until it is dropped or cancelled.
  virtual void attach(std::shared_ptr<RecordedWork> work) = 0;
  /// Launches everything in a recording, in the order of its devices. Dropout whose key had the first recorded step
  /// gets `step`: kernels read it from a counter on their device, which every replay advances, so that replays in order
  /// of their steps set nothing.
  virtual void replay(int recording, std::uint64_t step) = 0;
  /// Waits for the devices, and gives the recording's memory back.
  virtual void drop(int recording) noexcept = 0;
};

/// The number of the recording of which the device is a part now; 0: none. For any thread.
int recording_of(Device device);

/// The key of a recording: steps with equal keys are replays of one.
struct StepKey {
  std::int64_t rows = 0;   // rows of the batch on this device
  Rows stamp = {};         // the batch's; its step may differ
  float lr = 0;            // or whatever number the host gives to kernels and changes on the way
  std::int64_t steps = 1;  // consecutive ones that are recorded together; the stamp is the first one's
};

/// Reports a change of a mode by which the host decides while it records, such as that of a module: steps are replays
/// only of recordings that were made with the same modes. Whatever has a mode passes a number of its own, and the same
/// one when the mode changes back. For any thread.
void switch_mode(std::uint64_t number);

/// Runs the steps of a loop over one device, or over those of DataParallel. The first of each batch shape, and the
/// first two of all, run as they are: that prepares what must not happen while recording (plans, loading of kernels),
/// and an optimizer's first step is not like the others. The next of each key is recorded and replayed, all others are
/// replays, with the same bits:
///
///     StepGraph graph(device);
///     for (auto at = loader.begin(); at != loader.end(); ++at) {
///       loader.stage(1);
///       graph.run({loader.rows(), loader.stamp(), opt.lr()}, [&] {
///         auto [images, labels] = loader.batch();
///         ...
///         return loss.value();
///       });
///     }
///     const double mean = graph.take_loss_sum() / steps;
///
/// The step finds its batch at the same addresses each time, or makes it (data::Loader::batch with `deferred`). Its
/// batch is stamped, so that dropout reads its step. It does not copy to or from the host, and what it changes on the
/// host (counters, flags) changes in runs as it is and when recorded only; where a module's mode has changed (train(),
/// eval()), another recording is made. Values that it keeps are overwritten by the next step of their key. Used by the
/// first device's thread.
///
/// Ranks of ddp may record their collectives where NCCL carries them, as long as all of them run the same keys in the
/// same order: NCCL requires an operation captured, and a graph launched, by all ranks or none. The devices of dp are
/// one graph, without NCCL, which warns that launching graphs of several devices of one process may deadlock.
class StepGraph {
 public:
  /// Throws UsageError for devices that record nothing, which CPUs are, and for several of which not all can access
  /// each other's memory.
  explicit StepGraph(std::vector<Device> devices);
  explicit StepGraph(Device device) : StepGraph(std::vector<Device>{device}) {}
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// From now on a recording that fails with a DeviceError is no error: `remark` is called with its text, and that step
  /// and all later ones run plain. That step is then called twice, so that what it changes on the host changes twice;
  /// dropout draws a second mask for a batch that the step does not take from a loader itself. Not for ranks, which
  /// must all record or none.
  void fall_back(std::function<void(const std::string& why)> remark) { remark_ = std::move(remark); }
  /// `step` returns its loss, one f32 on the first device. What it throws is passed on; the devices are then as if a
  /// recorded step had not been asked for, and the key is tried again next time.
  void run(const StepKey& key, FunctionRef<Tensor()> step);
  /// Runs key.steps steps as run() runs one: `step(i)` is the i-th, and one launch replays all of them.
  void run_several(const StepKey& key, FunctionRef<Tensor(std::int64_t i)> step);
  /// The sum of the losses of all steps since it was last taken, added up on the device in f32. Waits for the
  /// devices.
  double take_loss_sum();

  /// Recordings made so far, and steps that were replays.
  std::int64_t recordings() const { return recordings_; }
  std::int64_t replays() const { return replays_; }

 private:
  struct Entry {
    StepKey key;
    Precision precision;
    std::uint64_t modes;  // the process's modes when the step runs
    int recording = 0;    // 0: none yet
    bool ran = false;
    std::uint64_t used = 0;  // when it last ran
  };
  Entry& entry_of(const StepKey& key);
  bool prepared(const Entry& entry) const;
  /// False when it failed and steps are plain from now on.
  bool record(Entry& entry, const StepKey& key, FunctionRef<Tensor(std::int64_t)> step);
  void drop_all();
  void run_all(std::int64_t steps, FunctionRef<Tensor(std::int64_t)> step);

  std::vector<Device> devices_;
  StepRecorder& recorder_;  // the first device's
  Tensor loss_sum_;
  std::vector<Entry> entries_;
  std::uint64_t runs_ = 0;
  std::int64_t recordings_ = 0, replays_ = 0;
  std::function<void(const std::string& why)> remark_;  // null: a recording that fails is an error
  bool plain_ = false;                                  // one has failed
};

}  // namespace duet
