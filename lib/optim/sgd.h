// Stochastic gradient descent over flat buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/nn/module.h"

namespace duet::optim {

struct SGDOptions {
  float lr = 0.01f;
  float momentum = 0;
  float dampening = 0;
  float weight_decay = 0;
  bool nesterov = false;
};

/// torch.optim.SGD: g += weight_decay * p; buf = g at a parameter's first step, later momentum * buf + (1 - dampening)
/// * g; g = nesterov ? g + momentum * buf : buf; p -= lr * g. Parameters without a gradient are left alone. One kernel
/// updates the whole model when all have one; replicas that hold the values (Note [Resident replicas] in
/// lib/nn/parameters.h) are updated alike, each on its device; ranks that share memory may divide the update (Note
/// [Sharded update] in lib/nn/sharded_update.h), of which state() is whole on every rank after a step. While it lives,
/// the model stays on its device.
class SGD {
 public:
  /// Throws UsageError for values that make no sense.
  SGD(nn::Module& model, const SGDOptions& options);

  /// Marks all gradients empty; the next backward overwrites them.
  void zero_grad() { store_.zero_grad(); }
  void step();

  const SGDOptions& options() const { return options_; }
  void set_lr(float lr) { options_.lr = lr; }

  /// The momentum buffers, named and shaped like the parameters; empty before the first step or without momentum.
  std::vector<nn::NamedTensor> state() const;
  /// Continues from what state() gave. Throws DataError when names or shapes differ.
  void load_state(const std::vector<nn::NamedTensor>& state);

 private:
  /// What one update works on: flat buffers of one device.
  struct Buffers {
    Tensor values, gradients, momentum;
  };
  /// Those of the model, then those of the replicas that are to be updated, too.
  PooledVector<Buffers> all_buffers();
  void update(const Buffers& buffers, bool first) const;
  bool started_alike() const;
  /// A step of which this rank does its shard.
  void share_step(const std::shared_ptr<nn::ShardedUpdate>& ranks);
  /// Updates elements from `begin` on; `gradient` and `momentum` belong to them.
  void update_run(std::int64_t begin, const Tensor& gradient, const Tensor& momentum) const;

  nn::ParameterStore& store_;
  nn::ParameterStore::Hold held_;
  SGDOptions options_;
  Tensor momentum_;            // flat, like the store's buffers
  std::vector<char> started_;  // by slot: its momentum buffer has a value
  // The same momentum on the devices of these replicas, as long as every step has updated them.
  std::weak_ptr<nn::ResidentReplicas> residents_;
  std::vector<Tensor> resident_momentum_;
  bool common_momentum_ = false;                  // momentum_ is common to the ranks
  std::weak_ptr<nn::ShardedUpdate> common_with_;  // these
};

}  // namespace duet::optim
