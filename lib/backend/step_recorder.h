// Records the work that is launched on a device, and replays it with one launch: CUDA graphs.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/base/function_ref.h"

namespace duet {

/// Work of other parts, such as collectives, that is in a recording and must be notified of each replay.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  /// Called by the device's thread, for every replay. Calls `launch`, which launches the whole recording;
  /// throws, before that, where the work can no longer be done.
  virtual void replay(FunctionRef<void()> launch) = 0;
};

/// The recordings of one device; used by the thread that launches its kernels.
///
/// Between begin() and end() no launched work runs: it is recorded with its addresses and
/// numbers. What the host computes or decides meanwhile is decided for all replays. Memory that
/// is allocated belongs to the recording until it is dropped, so that each replay finds its own; what lies there is
/// that of the last replay. Copies between the device and the host, and waiting for it, throw DeviceError.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// Starts recording `steps` consecutive steps, the first of which is `step` (DropoutKey::step). Throws UsageError
  /// when a recording runs.
  virtual void begin(std::uint64_t step, std::uint64_t steps = 1) = 0;
  /// Ends it and returns its number. Throws DeviceError, as after cancel(), when something could not be recorded.
  virtual int end() = 0;
  /// Discards the recording that runs, if one does. The device is as if nothing had been launched.
  virtual void cancel() noexcept = 0;
  /// The number of the recording that runs, which no other has; 0 if none does. For any thread.
  virtual int recording() const = 0;
  /// Puts `work` into the recording that runs, which holds it until it is dropped or cancelled.
  virtual void attach(std::shared_ptr<RecordedWork> work) = 0;
  /// Launches everything in a recording, in the order of the device. Dropout whose key had the first recorded step gets
  /// `step`: kernels read it from a counter on the device, which every replay advances, so that replays in order of
  /// their steps set nothing.
  virtual void replay(int recording, std::uint64_t step) = 0;
  /// Waits for the device, and gives the recording's memory back.
  virtual void drop(int recording) noexcept = 0;
};

}  // namespace duet
