#include "lib/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lib/error.h"

namespace duet::optim {

void LRScheduler::set_steps(std::int64_t steps) {
  require<UsageError>(steps >= 0, "a schedule after ", steps, " steps, expected 0 or more");
  optimizer_.set_lr(static_cast<float>(base_lr_ * factor(steps)));
  steps_ = steps;
}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  require<UsageError>(step_size >= 1, "StepLR: step_size is ", step_size, ", expected 1 or more");
  require<UsageError>(gamma >= 0, "StepLR: gamma is ", gamma, ", expected 0 or more");
}

double StepLR::factor(std::int64_t steps) const { return std::pow(gamma_, static_cast<double>(steps / step_size_)); }

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : LRScheduler(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
  require<UsageError>(gamma >= 0, "MultiStepLR: gamma is ", gamma, ", expected 0 or more");
  std::ranges::sort(milestones_);
  require<UsageError>(milestones_.empty() || milestones_.front() >= 1, "MultiStepLR: a milestone is ",
                      milestones_.empty() ? 0 : milestones_.front(), ", expected 1 or more");
}

double MultiStepLR::factor(std::int64_t steps) const {
  const auto reached = std::ranges::upper_bound(milestones_, steps) - milestones_.begin();
  return std::pow(gamma_, static_cast<double>(reached));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : LRScheduler(optimizer), t_max_(t_max), eta_min_(eta_min) {
  require<UsageError>(t_max >= 1, "CosineAnnealingLR: t_max is ", t_max, ", expected 1 or more");
  require<UsageError>(eta_min >= 0, "CosineAnnealingLR: eta_min is ", eta_min, ", expected 0 or more");
  require<UsageError>(base_lr() > 0, "CosineAnnealingLR: the optimizer's lr is 0, expected more");
}

double CosineAnnealingLR::factor(std::int64_t steps) const {
  const double low = eta_min_ / base_lr();
  const double turned = std::numbers::pi * static_cast<double>(steps) / static_cast<double>(t_max_);
  return low + (1 - low) * (1 + std::cos(turned)) / 2;
}

LinearLR::LinearLR(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total)
    : LRScheduler(optimizer), start_(start_factor), end_(end_factor), total_(total) {
  require<UsageError>(start_factor > 0 && start_factor <= 1, "LinearLR: start_factor is ", start_factor,
                      ", expected above 0 to 1");
  require<UsageError>(end_factor >= 0 && end_factor <= 1, "LinearLR: end_factor is ", end_factor, ", expected 0 to 1");
  require<UsageError>(total >= 1, "LinearLR: total is ", total, " steps, expected 1 or more");
  set_steps(0);
}

double LinearLR::factor(std::int64_t steps) const {
  const double done = static_cast<double>(std::min(steps, total_)) / static_cast<double>(total_);
  return start_ + (end_ - start_) * done;
}

}  // namespace duet::optim
