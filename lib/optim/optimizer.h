// The base of all optimizers: state buffers, and an update of every element by one rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/nn/flat_parameters.h"
#include "lib/nn/module.h"

namespace duet::optim {

/// Base of the optimizers, as torch.optim.Optimizer: an own one implements update(). It updates the parameters of the
/// module that it is made of, a whole model, or a part of one such as `model.head`; of a wrapper those of what it
/// wraps. Parameters without a gradient are left alone. One kernel updates them all when all have one and were updated
/// equally often. Where a wrapper has set an update site (Note [Update sites] in lib/nn/residence.h), the update takes
/// place there. While an optimizer lives, the model stays on its device. Not thread-safe.
class Optimizer : private Recoverable {
 public:
  ~Optimizer() override { leave(); }

  /// Marks the gradients of its parameters empty; the next backward overwrites them.
  void zero_grad() { store_.zero_grad(state_.first_slot, state_.slots); }
  /// Updates the parameters that have a gradient. The first call in a process that finds none prints a warning. Throws
  /// UsageError for gradients that DistributedDataParallel has not reduced: see its option local_steps.
  void step();

  float lr() const { return lr_; }
  /// Throws UsageError for a rate that is negative, infinite or NaN.
  void set_lr(float lr);
  /// The rate at construction, from which schedules compute theirs (torch's "initial_lr").
  float initial_lr() const { return initial_lr_; }

  /// A copy of what torch's state_dict holds of each parameter that was updated: "conv1.weight.exp_avg", and
  /// "conv1.weight.step" (one f32) where the rule needs the number of steps. Names are those in the whole model, so
  /// that the states of optimizers of several parts make one list.
  std::vector<nn::NamedTensor> state() const;
  /// Continues from what state() gave, also that of a model with other wrappers (without_wrappers()); of a part's
  /// optimizer also from a list that holds the states of other parts' parameters, which are left to their optimizers.
  /// Throws DataError when names, shapes or numbers of steps are wrong, or a parameter has only a part of its state;
  /// the optimizer then is as before.
  void load_state(const std::vector<nn::NamedTensor>& state);

 protected:
  /// `kind` is the optimizer's name, for messages; `buffers` the names of the buffers that it keeps. Throws UsageError
  /// for a part of a model that has no parameters.
  Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps);

  /// Updates the elements of a run, of which this is the step-th update, from 1 on: those of `share` of `shares` only,
  /// as Backend's kernels divide them, because other threads update the others at the same time.
  virtual void update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const = 0;
  /// Adds the optimizer and settings other than lr(), which the ranks of DistributedDataParallel are to have in common.
  virtual void add_settings(nn::UpdateSettings& /*settings*/) const {}

 private:
  friend class LRScheduler;
  void begin_step() override { lr_at_begin_ = lr_; }
  void restore() override { lr_ = lr_at_begin_; }
  void stream(StateStream& state) override;
  bool is_written() const override { return true; }
  /// Says that schedules are where the program wants them.
  void forget_load() {
    is_loaded_ = false;
    new_schedules_ = {};
  }
  bool in_step() const;
  void update_run(const nn::UpdateRun& run) const;
  void divide(const nn::UpdateRun& run, std::int64_t step) const;
  int number_of(std::size_t own) const { return state_.first_slot + static_cast<int>(own); }
  const nn::Slot& slot(std::size_t own) const { return store_.slots()[static_cast<std::size_t>(number_of(own))]; }
  bool has_gradient(std::size_t own) const { return store_.has_gradient(number_of(own)); }
  nn::OptimizerState empty_state() const;
  Tensor part(const Tensor& buffer, const nn::Slot& slot) const;
  std::vector<std::string> state_names(const nn::Slot& slot) const;

  nn::FlatParameters& store_;
  nn::Residence::Hold held_;
  std::string kind_;
  float lr_ = 0, initial_lr_, lr_at_begin_ = 0;  // the last: of the step in flight of an elastic job
  std::vector<std::string> buffer_names_;
  bool counts_steps_;
  bool is_loaded_ = false;  // since then no step was taken
  Lasting new_schedules_;   // held by those of which the program has not said where they are
  nn::OptimizerState state_;
  std::weak_ptr<nn::UpdateSite> site_;  // where the last update ran
  std::vector<std::int64_t> steps_;     // by slot of its own
};

}  // namespace duet::optim
