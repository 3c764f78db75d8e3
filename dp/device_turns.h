// Several replicas on one device, of which one computes at a time.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/function_ref.h"
#include "lib/device.h"

namespace duet::dp {

/// Runs a device's replicas one after the other on the thread that calls run(). One that waits for other replicas lets
/// the next one begin, on a thread of its own, so that the device computes all the time, but never on two cores.
class DeviceTurns {
 public:
  /// Replicas [begin, end).
  DeviceTurns(Device device, int begin, int end) : device_(device), begin_(begin), end_(end) {}

  int begin() const { return begin_; }
  int end() const { return end_; }
  int size() const { return end_ - begin_; }

  /// Calls task(i) for every replica. Rethrows what the first that failed threw, after all have stopped; those that
  /// have not begun then do not.
  void run(FunctionRef<void(int replica)> task);
  /// Called by a replica within its task, before and after it waits for others.
  void wait_begins();
  void wait_ended() { turn_.lock(); }
  /// Called by a task when it begins: throws if its thread couldn't be bound to the device.
  void require_bound() const {
    if (unbound_ != nullptr) std::rethrow_exception(unbound_);
  }

 private:
  /// Runs the replicas that have not begun; holds turn_.
  void run_rest(const std::exception_ptr& unbound = nullptr) noexcept;

  const Device device_;
  const int begin_, end_;
  const FunctionRef<void(int)>* task_ = nullptr;
  std::mutex turn_;  // held by the thread whose replica computes; guards what follows
  int next_ = 0;
  std::vector<std::thread> threads_;
  std::exception_ptr failure_, unbound_;
};

}  // namespace duet::dp
