// Learning rates that change from step to step, or from epoch to epoch (torch.optim.lr_scheduler).
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/optim/optimizer.h"

namespace duet::optim {

/// Sets an optimizer's rate to its initial_lr() * factor(n) after n calls of step(), and at construction (n = 0).
/// Factors are those of PyTorch's closed forms, so that a rate depends on n alone: a rate set by hand lasts until the
/// next step(), and of two schedules of one optimizer the one that steps last counts (SequentialLR joins them). A
/// run that resumes from a checkpoint calls set_steps() of each; without that, the first step of an optimizer that has
/// loaded a state throws UsageError. SGD without momentum has no state, so it doesn't notice. A StepGraph records a
/// step again for each new rate. After the optimizer, a schedule may only be destroyed. Not thread-safe.
class LRScheduler : private Recoverable {
 public:
  ~LRScheduler() override { leave(); }

  /// After the optimizer's step() or at the end of an epoch, as the schedule counts.
  void step() {
    if (!Recovery::instance().is_void()) set_steps(steps_ + 1);
  }
  std::int64_t steps() const { return steps_; }
  /// Continues as after so many calls of step(), of a checkpoint for instance; 0 restarts it. Throws UsageError for a
  /// negative number.
  void set_steps(std::int64_t steps);
  /// The rate after so many steps, divided by the initial one.
  virtual double factor(std::int64_t steps) const = 0;

 protected:
  explicit LRScheduler(Optimizer& optimizer) : optimizer_(optimizer), new_(optimizer.new_schedules_.hold()) {
    join("a schedule");
  }
  /// For constructors of schedules: as set_steps(), but not by the program.
  void begin_at(std::int64_t steps);
  /// Says that another schedule has this as a part, and its steps.
  static void set_part(const LRScheduler& part) { part.new_ = nullptr; }

 private:
  bool is_copied() const override { return true; }
  void stream(StateStream& state) override { state.value(steps_); }
  Optimizer& optimizer_;
  std::int64_t steps_ = 0;
  mutable Lasting::Hold new_;  // until the program has said where this is
};

/// gamma^floor(n / step_size).
class StepLR final : public LRScheduler {
 public:
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

  double factor(std::int64_t steps) const override;

 private:
  std::int64_t step_size_;
  double gamma_;
};

/// gamma to the number of milestones that have been reached.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1);

  double factor(std::int64_t steps) const override;

 private:
  std::vector<std::int64_t> milestones_;  // sorted
  double gamma_;
};

/// eta_min + (initial - eta_min) * (1 + cos(pi * n / t_max)) / 2 (Loshchilov and Hutter, SGDR, 2017).
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min = 0);

  double factor(std::int64_t steps) const override;

 private:
  std::int64_t t_max_;
  double low_;  // eta_min / initial rate
};

/// Linear warm-up: from start_factor to end_factor over `total_iters` steps, end_factor from then on.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, double start_factor = 1.0 / 3, double end_factor = 1,
                    std::int64_t total_iters = 5);

  double factor(std::int64_t steps) const override;

 private:
  double start_, end_;
  std::int64_t total_iters_;
};

/// One schedule after the other: the k-th milestone is the step at which the (k+1)-th schedule begins, at its step 0.
/// The schedules must outlive it, and are not stepped themselves.
class SequentialLR final : public LRScheduler {
 public:
  SequentialLR(Optimizer& optimizer, std::vector<const LRScheduler*> schedules, std::vector<std::int64_t> milestones);
  double factor(std::int64_t steps) const override;

 private:
  std::vector<const LRScheduler*> schedules_;
  std::vector<std::int64_t> milestones_;  // ascending
};

}  // namespace duet::optim
