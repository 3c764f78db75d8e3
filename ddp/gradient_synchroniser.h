// What the ranks do in a step of training besides its computation, for any autograd.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_weights.h"
#include "ddp/reducer.h"
#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"

namespace duet::ddp {

/// The steps of one wrapper: their phases in the flight recorder, the Reducer, no_sync() and join(). The
/// wrapper says when forward and backward begin and end, and when a gradient is complete. A step whose forward begins
/// while its device is recorded (lib/backend/step_graph.h) does not count. Used by one thread at a time; the group must
/// outlive it.
class GradientSynchroniser {
 public:
  /// See Reducer.
  GradientSynchroniser(ProcessGroup& group, std::vector<ReducerSlot> slots, const ReducerOptions& options)
      : group_(group), reducer_(group, std::move(slots), options) {}

  /// See DistributedDataParallel.
  [[nodiscard]] Lasting::Hold no_sync() { return no_sync_.hold(); }
  bool synchronises() const { return !no_sync_.lasts(); }
  bool joining() const { return joins_.lasts(); }

  /// The forward of a synchronised step begins. Returns the rank whose buffers all get: rank 0, within join() the
  /// highest that trains a step now. All ranks call it.
  int forward_begins();
  void forward_ended() const { enter(Phase::backward); }
  /// A synchronised backward begins. What one that threw has left is forgotten.
  void backward_begins();
  /// A synchronised backward has computed all that it will: waits for the sums of all ranks. `has_gradient`: of a slot
  /// that did not become ready in it, whether gradients have accumulated there before, which go along.
  void backward_ended(FunctionRef<bool(int slot)> has_gradient);
  /// In place of that, in a step that an elastic job does again: waits for what is on its way, and forgets the rest.
  void abandon_backward();

  /// What ranks do that have ended, while others train.
  struct Join {
    bool by_rows = false;                                // weights are exchanged in every step
    FunctionRef<void(int root)> step_begins;             // broadcasts buffers, where every step does
    FunctionRef<void(int root)> parameters_and_buffers;  // broadcasts them
    FunctionRef<void(int blocks)> owns;                  // the ranks that train own subtrees of so many blocks
  };
  /// See DistributedDataParallel::join.
  void join(const std::function<void()>& body, const Join& calls);

  ProcessGroup& group() const { return group_; }
  Reducer& reducer() { return reducer_; }
  const Reducer& reducer() const { return reducer_; }
  const std::shared_ptr<RankWeights>& weights() const { return weights_; }
  /// Numbers the forwards.
  std::uint64_t next_forward() { return ++forwards_; }

 private:
  void enter(Phase phase) const;
  void reduced();
  /// The highest rank that trains a step now, or -1. Within join(), all ranks call it when a step begins.
  int highest_active_rank(bool trains);

  ProcessGroup& group_;
  Reducer reducer_;
  std::shared_ptr<RankWeights> weights_ = std::make_shared<RankWeights>();
  Lasting no_sync_, joins_;  // while no_sync() is held, and within join()
  std::uint64_t forwards_ = 0;
  bool recorded_ = false;     // the step whose forward has begun, and whose backward has not ended
  bool in_backward_ = false;  // one that synchronises
};

}  // namespace duet::ddp
