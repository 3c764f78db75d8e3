// What collectives before the first step of an elastic job gave a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "lib/base/function_ref.h"

namespace duet::ddp {

/// The results of a rank's collectives, kept in the store of its job for a process that replaces it: the other ranks do
/// not make these calls again.
class CallResults {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a rank; those behind are not kept
  CallResults(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// The call has ended. Messages between two ranks are not kept.
  void keep(const Call& call);
  /// Gives the call the result that it had; waits for it until `are_all_kept`. Throws UsageError where the rank's first
  /// process made another call, or the result is not kept.
  void repeat(const Call& call, FunctionRef<bool()> are_all_kept);
  int rank() const { return rank_; }

 private:
  std::string key() const;
  const std::shared_ptr<Store> store_;
  const int rank_;
  std::int64_t calls_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace duet::ddp
