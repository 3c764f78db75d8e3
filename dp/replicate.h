// The second of data parallelism's four steps: every device gets the values of the model.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dp/persistent_replicas.h"
#include "dp/replica_sums.h"
#include "lib/backend/backend.h"
#include "lib/base/thread_pool.h"
#include "lib/nn/module.h"
#include "lib/pool.h"

namespace duet::dp {

/// When the replicas get their values.
enum class Refresh {
  /// Copied from the first device in every forward, as PyTorch does.
  per_forward,
  /// Devices that share memory read the same values. Others keep copies, and the sum of the gradients is given to all
  /// of them, so that an optimizer updates every copy: see Note [Update sites] in lib/nn/update_site.h. Where the
  /// module is only a part of a model, or devices of several kinds take part, they are copied in every forward.
  persistent,
};

/// One context of a module per device, and a long-lived thread for each device but the first, which runs on the
/// calling thread. Replica 0 works on the model's own values and buffers, so what it does to buffers stays; buffers
/// of the others are copied before every forward and dropped after it, values as Refresh says.
class Replicas {
 public:
  using Forward = std::function<nn::Value(nn::Context&, const nn::Value&)>;
  /// `forward` is what each replica runs: the module's own forward, perhaps with a loss. Throws UsageError for no
  /// devices or one named twice.
  Replicas(const nn::Module& module, std::span<const Device> devices, Refresh refresh, DeviceSum sum, Forward forward);

  int size() const { return static_cast<int>(devices_.size()); }
  std::span<const Device> devices() const { return devices_; }
  const nn::Module& module() const { return module_; }
  nn::Context& context(int i) { return contexts_[static_cast<std::size_t>(i)]; }
  ThreadPool& threads() { return *threads_; }
  ReplicaSums& sums() { return sums_; }
  nn::Value forward(int i, const nn::Value& input) { return forward_(context(i), input); }

  /// Throws NumericError that names the replica whose persistent values are not the model's, bit for bit: they
  /// were written past the store. Waits for the devices.
  void require_same_values() const;

  /// Brings values, buffers, mode and random key of `count` replicas up to those of the model's context. Throws
  /// DeviceError when the model is not on the first device.
  void replicate(const nn::Context& model, int count);

  /// Adds up the gradients of all replicas as DeviceSum says, on the model's device: into `destination`, which has the
  /// flat order of the module's slots. Replicas for which took_part is false count as zero. `for_all`: the destination
  /// is the model's gradient; persistent replicas get the sum, too.
  void sum_gradients(std::span<const char> took_part, const Tensor& destination, bool for_all);

 private:
  void make_contexts(const nn::Context& model);
  bool can_persist(const nn::Context& model) const;

  const nn::Module& module_;
  std::vector<Device> devices_;
  Refresh refresh_;
  DeviceSum sum_;
  Forward forward_;
  std::vector<std::unique_ptr<nn::ParameterStore>> stores_;
  std::vector<nn::Context> contexts_;
  const nn::ParameterStore* replicated_ = nullptr;  // the store of which the contexts were made
  std::shared_ptr<PersistentReplicas> persistent_;  // all but the first; null where values are copied in each forward
  std::shared_ptr<ThreadPool> threads_;
  ReplicaSums sums_;
};

}  // namespace duet::dp
