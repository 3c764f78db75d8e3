#include "lib/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "lib/error.h"

namespace duet::optim {

void LRScheduler::set_steps(std::int64_t steps) {
  begin_at(steps);
  new_ = nullptr;
}

void LRScheduler::begin_at(std::int64_t steps) {
  require<UsageError>(steps >= 0, "a schedule after ", steps, " steps, expected 0 or more");
  optimizer_.set_lr(static_cast<float>(double{optimizer_.initial_lr()} * factor(steps)));
  steps_ = steps;
}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  require<UsageError>(step_size >= 1, "StepLR: step_size is ", step_size, ", expected 1 or more");
  require<UsageError>(gamma >= 0, "StepLR: gamma is ", gamma, ", expected 0 or more");
  begin_at(0);
}

double StepLR::factor(std::int64_t steps) const { return std::pow(gamma_, static_cast<double>(steps / step_size_)); }

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : LRScheduler(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
  require<UsageError>(gamma >= 0, "MultiStepLR: gamma is ", gamma, ", expected 0 or more");
  std::ranges::sort(milestones_);
  begin_at(0);
}

double MultiStepLR::factor(std::int64_t steps) const {
  const auto reached = std::ranges::upper_bound(milestones_, steps) - milestones_.begin();
  return std::pow(gamma_, static_cast<double>(reached));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : LRScheduler(optimizer), t_max_(t_max), low_(eta_min / double{optimizer.initial_lr()}) {
  require<UsageError>(t_max >= 1, "CosineAnnealingLR: t_max is ", t_max, ", expected 1 or more");
  require<UsageError>(eta_min >= 0, "CosineAnnealingLR: eta_min is ", eta_min, ", expected 0 or more");
  require<UsageError>(optimizer.initial_lr() > 0, "CosineAnnealingLR: the optimizer's lr is 0, expected more");
  begin_at(0);
}

double CosineAnnealingLR::factor(std::int64_t steps) const {
  const double angle = std::numbers::pi * static_cast<double>(steps) / static_cast<double>(t_max_);
  return low_ + (1 - low_) * (1 + std::cos(angle)) / 2;
}

LinearLR::LinearLR(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total_iters)
    : LRScheduler(optimizer), start_(start_factor), end_(end_factor), total_iters_(total_iters) {
  require<UsageError>(start_factor > 0 && start_factor <= 1, "LinearLR: start_factor is ", start_factor,
                      ", expected above 0 to 1");
  require<UsageError>(end_factor >= 0 && end_factor <= 1, "LinearLR: end_factor is ", end_factor, ", expected 0 to 1");
  require<UsageError>(total_iters >= 1, "LinearLR: total_iters is ", total_iters, ", expected 1 or more");
  begin_at(0);
}

double LinearLR::factor(std::int64_t steps) const {
  const double done = static_cast<double>(std::min(steps, total_iters_)) / static_cast<double>(total_iters_);
  return start_ + (end_ - start_) * done;
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<const LRScheduler*> schedules,
                           std::vector<std::int64_t> milestones)
    : LRScheduler(optimizer), schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
  require<UsageError>(schedules_.size() == milestones_.size() + 1, "SequentialLR: ", milestones_.size(),
                      " milestones for ", schedules_.size(), " schedules, expected one fewer");
  require<UsageError>(std::is_sorted(milestones_.begin(), milestones_.end()),
                      "SequentialLR: the milestones are not in ascending order");
  for (const LRScheduler* const schedule : schedules_) set_part(*schedule);
  begin_at(0);
}

double SequentialLR::factor(std::int64_t steps) const {
  const auto begun = static_cast<std::size_t>(std::ranges::upper_bound(milestones_, steps) - milestones_.begin());
  return schedules_[begun]->factor(begun == 0 ? steps : steps - milestones_[begun - 1]);
}

}  // namespace duet::optim
