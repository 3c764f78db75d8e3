// What all optimizers have in common: buffers beside the parameters, and an update of every element by one rule.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/nn/module.h"
#include "lib/nn/update_site.h"

namespace duet::optim {

/// Base of the optimizers, as torch.optim.Optimizer: an own one implements update() and settings(). Parameters without
/// a gradient are left alone. One kernel updates the whole model when all have one. Where a wrapper has set an update
/// site (Note [Update sites] in lib/nn/update_site.h), the update takes place there. While an optimizer lives, the
/// model stays on its device. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Marks all gradients empty; the next backward overwrites them.
  void zero_grad() { store_.zero_grad(); }
  void step();

  float lr() const { return lr_; }
  /// Throws UsageError for a negative or NaN rate.
  void set_lr(float lr);

  /// What torch's state_dict holds of each parameter: "conv1.weight.exp_avg", and "conv1.weight.step" (one f32) where
  /// the rule needs the number of steps. Empty before the first step.
  std::vector<nn::NamedTensor> state() const;
  /// Continues from what state() gave. Throws DataError when names or shapes differ.
  void load_state(const std::vector<nn::NamedTensor>& state);

 protected:
  /// `kind` is the optimizer's name, for messages; `buffers` the names of the buffers that it keeps.
  Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps);

  /// Updates all elements of a run, of which this is the step-th update, from 1 on. `share` of `shares`: only that part
  /// of the elements, as in Backend::sgd_step.
  virtual void update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const = 0;
  /// The settings of the update in bits: ranks that divide an update must have the same.
  virtual std::vector<double> settings() const = 0;

 private:
  bool in_step() const;
  void update_run(const nn::UpdateRun& run) const;
  void divide(const nn::UpdateRun& run, std::int64_t step) const;
  std::string name_of(const nn::Slot& slot, const std::string& buffer) const;
  void load(const nn::NamedTensor& given);

  nn::ParameterStore& store_;
  nn::ParameterStore::Hold held_;
  std::string kind_;
  float lr_;
  std::vector<std::string> buffer_names_;
  bool counts_steps_;
  nn::OptimizerState state_;
  std::weak_ptr<nn::UpdateSite> site_;  // of the last update
  std::vector<std::int64_t> steps_;     // by slot
};

}  // namespace duet::optim
