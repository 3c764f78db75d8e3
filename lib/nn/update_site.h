// Where an optimizer's update takes place.
//
// Note [Update sites]: an optimizer updates the values of its model by their gradients, element by element.
// A wrapper may have it done elsewhere: on every device that keeps a copy of the values (DataParallel on GPUs), or by
// each rank for its part of the elements (ZeRO-1, DistributedDataParallel). It sets a site at the model's store; the
// optimizer gives its rule to the site, which calls it with the memory to work on. The optimizer is independent of
// devices and ranks, the wrapper of the rule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/function_ref.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet::nn {

/// Consecutive elements of the flat buffers, all on one device.
struct UpdateRun {
  std::int64_t begin = 0;  // place of the first in the model's flat buffers
  Tensor values, gradients;
  PooledVector<Tensor> state{};  // the optimizer's buffers
};

/// The buffers that an optimizer keeps from step to step, each laid out as the values.
struct OptimizerState {
  std::vector<Tensor> buffers;      // on the store's device; whole on every rank between two updates
  std::shared_ptr<void> at_site{};  // what the site of the last update keeps of them; null: nothing
};

/// Used by the store's thread.
class UpdateSite {
 public:
  using Rule = FunctionRef<void(const UpdateRun& run)>;
  using Settings = FunctionRef<std::uint32_t()>;

  virtual ~UpdateSite() = default;
  /// One update: calls `rule` for all elements that are to be updated here. `settings` hashes the rule's settings, of
  /// which ranks that divide an update must have the same. Throws what `rule` throws.
  virtual void update(OptimizerState& state, Settings settings, Rule rule) = 0;
  /// Values or gradients of the store were written by others, or may have been: copies of them are out of date.
  virtual void values_written() {}
  virtual void gradients_written() {}
};

}  // namespace duet::nn
