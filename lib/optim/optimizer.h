// The base of all optimizers: state buffers, and an update of every element by one rule.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/nn/module.h"
#include "lib/nn/parameters.h"

namespace duet::optim {

/// Base of the optimizers, as torch.optim.Optimizer: an own one implements update() and settings(). Parameters without
/// a gradient are left alone. One kernel updates the whole model when all have one and were updated equally often.
/// Where a wrapper has set an update site (Note [Update sites] in lib/nn/parameters.h), the update takes place there.
/// While an optimizer lives, the model stays on its device. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Marks all gradients empty; the next backward overwrites them.
  void zero_grad() { store_.zero_grad(); }
  void step();

  float lr() const { return lr_; }
  /// Throws UsageError for a rate that is negative, infinite or NaN.
  void set_lr(float lr);
  /// The rate at construction, from which schedules compute theirs (torch's "initial_lr").
  float initial_lr() const { return initial_lr_; }

  /// A copy of what torch's state_dict holds of each parameter that was updated: "conv1.weight.exp_avg", and
  /// "conv1.weight.step" (one f32) where the rule needs the number of steps.
  std::vector<nn::NamedTensor> state() const;
  /// Continues from what state() gave, also that of a model with other wrappers (without_wrappers()). Throws DataError
  /// when names, shapes or numbers of steps are wrong, or a parameter has only a part of its state; the optimizer then
  /// is as before.
  void load_state(const std::vector<nn::NamedTensor>& state);

 protected:
  /// `kind` is the optimizer's name, for messages; `buffers` the names of the buffers that it keeps.
  Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps);

  /// Updates the elements of a run, of which this is the step-th update, from 1 on: those of `share` of `shares` only,
  /// as Backend's kernels divide them, because other threads update the others at the same time.
  virtual void update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const = 0;
  /// The numbers on which the rule depends: ranks that divide an update must have the same.
  virtual std::vector<double> settings() const = 0;

 private:
  bool in_step() const;
  void update_run(const nn::UpdateRun& run) const;
  void divide(const nn::UpdateRun& run, std::int64_t step) const;
  std::uint32_t settings_hash() const;
  std::vector<std::string> state_names(const nn::Slot& slot) const;

  nn::ParameterStore& store_;
  nn::ParameterStore::Hold held_;
  std::string kind_;
  float lr_ = 0, initial_lr_;
  std::vector<std::string> buffer_names_;
  bool counts_steps_;
  nn::OptimizerState state_;
  std::weak_ptr<nn::UpdateSite> site_;  // of the last update
  std::vector<std::int64_t> steps_;     // by slot
};

}  // namespace duet::optim
