// ZeRO-1: each rank updates a shard of the parameters (Rajbhandari et al., "ZeRO", 2020).
#pragma once

#include <cstdint>

#include "ddp/comm_hook.h"
#include "ddp/group/process_group.h"
#include "lib/base/wrapper_times.h"
#include "lib/nn/parameters.h"

namespace duet::ddp {

/// The update site of ranks that share memory: each rank sums a shard of the gradients and updates its values; then all
/// ranks have all new values, with the bits of an update by every rank. The optimizer's buffers lie in memory that the
/// ranks share, each element written by one rank. So backward ends with gradients that are this rank's alone; reading
/// them throws. The store and the group must outlive it. All ranks make the same calls.
class ShardedUpdate final : public nn::UpdateSite {
 public:
  /// Moves values and gradients to where the other ranks can reach them. Throws UsageError where there is no such
  /// memory. All ranks make one.
  ShardedUpdate(nn::ParameterStore& store, ProcessGroup& group);
  /// Gradients that no update has summed stay withheld.
  ~ShardedUpdate() override;

  /// Calls `rule` for this rank's shard. Throws UsageError unless a backward that synchronises the ranks has ended
  /// since zero_grad() and since the last update.
  void update(nn::OptimizerState& state, Settings settings, Rule rule) override;

  /// A backward that synchronises the ranks has ended: its gradients may be summed, once.
  void gradients_ready();
  /// Whether such gradients are there, to which nothing may be added.
  bool has_gradients() const { return ready_at_ == store_.zero_grad_count(); }
  const WrapperTimes& times() const { return times_; }

 private:
  void reduce_update(std::uint32_t settings, ShardUpdate update);

  nn::ParameterStore& store_;
  SharedMemoryGroup& group_;
  Tensor gradients_, values_;
  // zero_grad_count() of gradients that are to be summed, and of those that were.
  std::uint64_t ready_at_ = ~std::uint64_t{0}, summed_at_ = ~std::uint64_t{0};
  WrapperTimes times_;
};

/// Leaves a bucket's gradients to the update.
class NoCommunication final : public CommHook {
 public:
  Work start(ProcessGroup& group, const GradBucket& bucket) override;
  void finish(ProcessGroup&, const GradBucket&) override {}
};

}  // namespace duet::ddp
