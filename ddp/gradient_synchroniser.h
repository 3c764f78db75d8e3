// From a gradient that is complete to the sum over all ranks: the listener of backward under DistributedDataParallel.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/gradient_rule.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/group/group_sums.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_weights.h"
#include "ddp/reducer.h"
#include "ddp/sharded_update.h"
#include "lib/base/wrapper_times.h"
#include "lib/monotonic.h"
#include "lib/nn/module.h"

namespace duet::ddp {

/// Marks the gradients of one module ready in a Reducer as backward completes them, in three events of the module's
/// store: backward begins (the scale of the ranks' gradients), a gradient is complete, backward has ended (waits for
/// the sums). Used by the module's thread.
class GradientSynchroniser {
 public:
  /// `sync` is false while gradients stay local, `joins` true within join(). `sharded`: the update that sums the
  /// gradients in place of the reducer, or null. All must outlive this.
  GradientSynchroniser(nn::Module& module, ProcessGroup& group, const bool& sync, const bool& joins, GradientRule rule,
                       std::int64_t compare_every, ReducerOptions options, ShardedUpdate* sharded);

  /// Of a forward: `x` is the first tensor of its input, or null. Throws UsageError for a shard of another world.
  RankWeights::Batch batch_of(const Variable* x);
  /// Around the forward of a synchronised step.
  void forward_begins();
  void forward_ended(Clock::time_point begin);
  /// Sets the phase in the flight recorder.
  void enter(Phase phase) const;

  const std::shared_ptr<RankWeights>& weights() const { return weights_; }
  GroupSums& sums() { return sums_; }
  Reducer& reducer() { return reducer_; }
  /// The values of the module's parameters.
  Tensor values() const { return store_.values_of(first_, count_); }
  WrapperTimes times() const;

 private:
  std::vector<ReducerSlot> slots() const;
  void backward_begins();
  double scale_of_gradients(unsigned normalisers);
  void grad_ready(int slot);
  void backward_ended();
  void compare_parameters() const;
  int recording() const;
  void forget();

  nn::ParameterStore& store_;
  const int first_, count_;  // slots of the module
  ProcessGroup& group_;
  GroupSums sums_;
  const bool &sync_, &joins_;
  const GradientRule rule_;
  const std::int64_t compare_every_;
  ShardedUpdate* const sharded_;
  std::shared_ptr<RankWeights> weights_ = std::make_shared<RankWeights>();
  std::uint64_t forwards_ = 0;
  bool recorded_step_ = false;  // whose forward ran, and whose backward has not ended
  bool in_backward_ = false;    // one that synchronises
  bool averages_ = true;        // in this backward: an earlier sum, which all ranks hold, stays as it is
  Clock::time_point forward_end_{};
  double forward_us_ = 0, backward_us_ = 0;
  Reducer reducer_;
  std::vector<char> ready_;
  std::uint64_t reduced_at_ = ~std::uint64_t{0};
  nn::HookHandle at_begin_, on_ready_, at_end_;
};

}  // namespace duet::ddp
