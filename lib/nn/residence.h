// Who else holds the values of a model: what keeps them on their device, shares out work on them, or has copies.
//
// Note [Update sites]: an optimizer updates the values of its model by their gradients, element by element.
// A wrapper may have it done elsewhere: on every device that keeps a copy of the values (DataParallel on GPUs). It sets
// a site at the values' residence; the optimizer gives its rule to the site, which calls it with the memory to work on.
// The optimizer is independent of devices, the wrapper of the rule.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"
#include "lib/base/threads.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet::nn {

/// Consecutive elements of the flat buffers, all on one device.
struct UpdateRun {
  Tensor values, gradients;
  PooledVector<Tensor> state{};  // the optimizer's buffers
};

/// The buffers that an optimizer keeps from step to step, each laid out as the values of the slots that it updates.
struct OptimizerState {
  int first_slot = 0, slots = 0;    // the model's slots: all of them, or those of a part of it
  std::vector<Tensor> buffers{};    // on the model's device
  std::shared_ptr<void> at_site{};  // what the site of the last update keeps of them; null: nothing
};

/// Used by the model's thread.
class UpdateSite {
 public:
  using Rule = FunctionRef<void(const UpdateRun& run)>;

  virtual ~UpdateSite() = default;
  /// One update: calls `rule` for every place where the values lie, with those of the state's slots. Throws what `rule`
  /// throws.
  virtual void update(OptimizerState& state, Rule rule) = 0;
  /// The model's values or gradients were written by others, or may have been: copies of them are out of date.
  virtual void values_written() {}
  virtual void gradients_written() {}
};

/// Used by one thread at a time.
class Residence {
 public:
  using Hold = Lasting::Hold;

  /// `model`: that of which these values are a replica's; null: they are a model's own.
  explicit Residence(const Residence* model = nullptr)
      : model_(model != nullptr ? model->hold("replicas (DataParallel)") : nullptr) {}
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  bool of_replica() const { return model_ != nullptr; }
  /// While one lives, the values stay on their device and the model stays a model of its own. `by` says what needs
  /// that.
  [[nodiscard]] Hold hold(const std::string& by) const { return holds_[by].hold(); }
  /// The names of what holds the values: "SGD, replicas (DataParallel)"; empty: nothing.
  std::string holders() const {
    std::string text;
    for (const auto& [by, held] : holds_)
      if (held.lasts()) text += (text.empty() ? "" : ", ") + by;
    return text;
  }

  /// Threads that may share out work on the flat buffers, until they go; those of a data-parallel wrapper whose devices
  /// share the model's memory.
  void set_threads(const std::shared_ptr<ThreadPool>& threads) { threads_ = threads; }
  /// Runs task(share, shares) for every share, each by the same thread as always; without threads it is one share.
  void divide(FunctionRef<void(int share, int shares)> task) const {
    const std::shared_ptr<ThreadPool> threads = threads_.lock();
    if (threads == nullptr) return task(0, 1);
    threads->run(threads->workers(), [&](int share, int) { task(share, threads->workers()); });
  }

  /// Sets the site where optimizers update the values while it lives; null: here. See Note [Update sites].
  void set_update_site(const std::shared_ptr<UpdateSite>& site) { update_site_ = site; }
  std::shared_ptr<UpdateSite> update_site() const { return update_site_.lock(); }
  /// See UpdateSite.
  void values_written() const {
    if (const auto site = update_site()) site->values_written();
  }
  void gradients_written() const {
    if (const auto site = update_site()) site->gradients_written();
  }

 private:
  mutable std::map<std::string, Lasting> holds_;
  Hold model_;  // on that of a replica
  std::weak_ptr<ThreadPool> threads_;
  std::weak_ptr<UpdateSite> update_site_;
};

}  // namespace duet::nn
