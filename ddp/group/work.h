// Handles of communication that runs in the background.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/store/store.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// The first failure of a process group, or its close, after which all of its operations throw. Thread-safe.
class GroupFailure {
 public:
  bool empty() const;
  /// Throws CommError after a failure or close().
  void check() const;
  /// Records that an operation failed. Returns the text to be thrown: its own, or that of check().
  std::string add(const std::string& operation, int rank, const std::exception& error);
  /// The group is closed. A failure from before stays.
  void close();

 private:
  mutable std::mutex mutex_;
  std::string text_;  // what check() throws
};

/// Where one operation stands. Thread-safe; reused by WorkPool.
class WorkState {
 public:
  /// Makes the state that of a new operation. With `finisher`, the first thread that waits runs it: if it returns true
  /// or throws, that ends the operation; after false another thread calls end().
  void begin(std::string_view name, std::function<bool(Clock::time_point deadline)> finisher = {});
  /// Ends the operation and wakes the threads that wait.
  void end(std::exception_ptr failure = nullptr);
  bool done() const;
  void wait(Clock::time_point deadline, Milliseconds timeout);
  /// The operation's place in the rank's record, which is updated when it ends.
  void set_mark(CallMark mark);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::string name_;
  bool done_ = false;
  std::exception_ptr failure_;
  std::function<bool(Clock::time_point)> finisher_;
  CallMark mark_;
};

/// The end of one operation; its buffers must stay untouched until wait() has returned. Copies share the operation.
/// wait() throws CommError where the group is closed before the operation has ended.
class Work {
 public:
  /// Nothing to wait for.
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  /// Stays false until wait() where only that polls for the end: send, recv, NCCL, buffers that are copied.
  bool done() const { return !state_ || state_->done(); }
  /// Blocks to the end of the operation and rethrows what it threw.
  void wait();
  /// As wait(); throws CommError if the operation has not ended by then. It goes on in the background.
  void wait(Milliseconds timeout);
  /// As WorkState's.
  void set_mark(CallMark mark);

 private:
  std::shared_ptr<WorkState> state_;
};

/// Hands out states and takes back those of ended operations that no Work holds any more, so that a training step
/// allocates none. Used by one thread at a time.
class WorkPool {
 public:
  std::shared_ptr<WorkState> take();

 private:
  std::vector<std::shared_ptr<WorkState>> states_;
};

}  // namespace duet::ddp
