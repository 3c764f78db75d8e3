// DDP's part in an update that ranks divide among themselves: Note [Sharded update] in lib/nn/sharded_update.h.
#pragma once

#include <cstdint>

#include "ddp/comm_hook.h"
#include "ddp/group/process_group.h"
#include "lib/nn/parameters.h"

namespace duet::ddp {

/// Where the time of the updates went, in microseconds, summed over steps.
struct ShardedUpdateTimes {
  double communication_us = 0;  // waiting for other ranks, and moving gradients and values
  double update_us = 0;         // the optimizer's own work
};

/// Over a group whose ranks share memory. The store and the group must outlive it.
class ShardedUpdate final : public nn::ShardedUpdate {
 public:
  /// Moves values and gradients to where the other ranks can reach them. Throws UsageError where there is no such
  /// memory. All ranks make one.
  ShardedUpdate(nn::ParameterStore& store, ProcessGroup& group);
  /// Gradients that no update has summed stay withheld.
  ~ShardedUpdate() override;

  Tensor common_zeros() override;
  void run(std::uint32_t rule, Update update) override;

  /// A backward that synchronises the ranks has ended: its gradients may be summed, once.
  void gradients_ready();
  /// Whether such gradients are there, to which nothing may be added.
  bool has_gradients() const { return ready_at_ == store_.zero_grad_count(); }
  const ShardedUpdateTimes& times() const { return times_; }

 private:
  nn::ParameterStore& store_;
  ProcessGroup& group_;
  Tensor gradients_, values_;
  // zero_grad_count() of gradients that are to be summed, and of those that were.
  std::uint64_t ready_at_ = ~std::uint64_t{0}, summed_at_ = ~std::uint64_t{0};
  ShardedUpdateTimes times_;
};

/// Leaves a bucket's gradients to the update.
class NoCommunication final : public CommHook {
 public:
  Work start(ProcessGroup& group, const GradBucket& bucket) override;
  void finish(ProcessGroup&, const GradBucket&) override {}
};

}  // namespace duet::ddp
