// Learning rates that change from step to step, or from epoch to epoch (torch.optim.lr_scheduler).
#pragma once

#include <cstdint>
#include <vector>

#include "lib/optim/optimizer.h"

namespace duet::optim {

/// Sets an optimizer's rate to base rate * factor(n) after n calls of step(), where the base rate is the optimizer's at
/// construction. Factors are those of PyTorch's closed forms, so that a rate depends on n alone. The optimizer must
/// outlive it. Not thread-safe.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// After the optimizer's step() or at the end of an epoch, as the schedule counts.
  void step() { set_steps(steps_ + 1); }
  std::int64_t steps() const { return steps_; }
  /// Goes on as after so many calls of step(), of a checkpoint for instance. Throws UsageError for a negative number.
  void set_steps(std::int64_t steps);
  double base_lr() const { return base_lr_; }

 protected:
  explicit LRScheduler(Optimizer& optimizer) : optimizer_(optimizer), base_lr_(optimizer.lr()) {}
  virtual double factor(std::int64_t steps) const = 0;

 private:
  Optimizer& optimizer_;
  double base_lr_;
  std::int64_t steps_ = 0;
};

/// gamma^floor(n / step_size).
class StepLR final : public LRScheduler {
 public:
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

 private:
  double factor(std::int64_t steps) const override;
  std::int64_t step_size_;
  double gamma_;
};

/// gamma to the number of milestones that have been reached.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1);

 private:
  double factor(std::int64_t steps) const override;
  std::vector<std::int64_t> milestones_;  // sorted
  double gamma_;
};

/// eta_min + (base - eta_min) * (1 + cos(pi * n / t_max)) / 2 (Loshchilov and Hutter, SGDR, 2017).
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min = 0);

 private:
  double factor(std::int64_t steps) const override;
  std::int64_t t_max_;
  double eta_min_;
};

/// Linear warm-up: from start_factor to end_factor over `total` steps, end_factor from then on (torch's LinearLR).
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, double start_factor = 1.0 / 3, double end_factor = 1, std::int64_t total = 5);

 private:
  double factor(std::int64_t steps) const override;
  double start_, end_;
  std::int64_t total_;
};

}  // namespace duet::optim
