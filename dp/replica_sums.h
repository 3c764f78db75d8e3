// Numbers that the replicas of one forward or backward add up while they run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/backend/backend.h"

namespace duet::dp {

/// Thrown in a replica that waits for one that failed; not a std::exception, so that no handler reports it as the
/// cause.
struct OtherReplicaFailed {
  std::exception_ptr cause;
};

/// A barrier with a sum for the replicas' threads. Their caller calls begin() before, and each thread leave() or fail()
/// at its end, so that no replica waits for one that has ended.
class ReplicaSums {
 public:
  explicit ReplicaSums(int replicas);
  /// Replicas 0 to count - 1 start to run.
  void begin(int count);
  /// What a replica's layers call.
  BatchSums& of(int replica) { return *entrances_[static_cast<std::size_t>(replica)]; }
  void leave();
  void fail(std::exception_ptr cause);

 private:
  class Entrance;
  void sum(int replica, std::span<double> values);
  void add_up();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<BatchSums>> entrances_;
  std::vector<std::span<double>> parts_;  // by replica; empty: takes no part
  std::vector<double> result_, scratch_;
  int count_ = 0, arrived_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
  std::exception_ptr cause_;
};

}  // namespace duet::dp
