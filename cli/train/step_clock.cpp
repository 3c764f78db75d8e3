#include "cli/train/step_clock.h"

#include <algorithm>
#include <utility>

#include "cli/system/number_text.h"
#include "lib/base/trace.h"

namespace duet::cli {

namespace {

const char* name_of(double StepParts::*part) {
  for (const PartName& candidate : step_part_names())
    if (candidate.member == part) return candidate.name;
  return "";
}

}  // namespace

StepClock::StepClock(std::int64_t started_ns, std::function<WrapperTimes()> wrapper, Device device)
    : started_ns_(started_ns), wrapper_(std::move(wrapper)), device_(device) {}

void StepClock::begin_epoch(std::int64_t steps, std::int64_t done) {
  steps_ = std::max<std::int64_t>(1, steps);
  step_ = done;
  epoch_us_ = epoch_images_ = epoch_loss_sum_ = epoch_rows_ = now_us_ = 0;
  const auto points = static_cast<std::size_t>(std::min<std::int64_t>(kLossPoints, steps_));
  loss_sums_.assign(points, 0);
  loss_rows_.assign(points, 0);
  step_us_.reserve(step_us_.size() + static_cast<std::size_t>(steps_));
  last_ = step_begin_ = Clock::now();
}

void StepClock::lap(double StepParts::*part, std::int64_t steps) {
  const Clock::time_point now = Clock::now();
  const double us = microseconds(now - last_);
  if (Trace::on() && steps == 1)
    Trace::add({.name = name_of(part), .device = device_, .begin_ns = to_ns(last_), .end_ns = to_ns(now)});
  last_ = now;
  now_us_ += us;
  if (!first_) total_.*part += us;
}

void StepClock::trace_steps(std::int64_t steps) {
  const std::int64_t begin = to_ns(step_begin_), all = to_ns(last_) - begin;
  for (std::int64_t i = 0; i < steps; ++i) {
    TraceEvent step{.name = "step",
                    .kind = TraceEvent::Kind::step,
                    .device = device_,
                    .amount = run_step_++,
                    .begin_ns = begin + all * i / steps,
                    .end_ns = begin + all * (i + 1) / steps};
    Trace::add(step);
    if (steps == 1) continue;  // its parts were traced
    step.name = "graph";
    step.kind = TraceEvent::Kind::work;
    Trace::add(step);
  }
  step_begin_ = last_;
}

std::int64_t StepClock::point_of(std::int64_t step) const {
  const auto points = static_cast<std::int64_t>(loss_sums_.size());
  return std::min(step * points / steps_, points - 1);
}

bool StepClock::needs_loss(std::int64_t pending) const {
  const std::int64_t next = step_ + pending;
  return first_ || next >= steps_ || point_of(next) != point_of(step_);
}

void StepClock::end_steps(std::int64_t steps, double losses, std::int64_t rows, std::int64_t global) {
  trace_steps(steps);
  const auto count = static_cast<double>(steps);
  if (first_) {
    first_ = false;
    first_end_s_ = static_cast<double>(monotonic_ns() - started_ns_) / 1e9;
    if (wrapper_) wrapper_first_ = wrapper_();
  } else {
    step_us_.insert(step_us_.end(), static_cast<std::size_t>(steps), static_cast<float>(now_us_ / count));
    epoch_us_ += now_us_;
    epoch_images_ += count * static_cast<double>(global);
  }
  now_us_ = 0;
  const auto point = static_cast<std::size_t>(point_of(step_));
  const double sum = rows > 0 ? losses * static_cast<double>(rows) : 0;  // the loss of no rows is not a number
  loss_sums_[point] += sum;
  loss_rows_[point] += count * static_cast<double>(global);
  epoch_loss_sum_ += sum;
  epoch_rows_ += count * static_cast<double>(rows);
  step_ += steps;
}

double StepClock::epoch_loss() const { return epoch_rows_ > 0 ? epoch_loss_sum_ / epoch_rows_ : 0; }

void StepClock::fill(Run& run) const {
  const std::vector<double> steps(step_us_.begin(), step_us_.end());
  run.startup_s = std::max(0.0, first_end_s_ - median(steps) / 1e6);
  if (steps.empty()) return;
  const double count = static_cast<double>(steps.size());
  StepParts mean = total_;
  for (const PartName& part : step_part_names()) mean.*part.member /= count;
  double hidden = 0;
  if (wrapper_) {
    const WrapperTimes now = wrapper_();
    mean.scatter = (now.scatter_us - wrapper_first_.scatter_us) / count;
    mean.replicate = (now.replicate_us - wrapper_first_.replicate_us) / count;
    mean.gather = (now.gather_us - wrapper_first_.gather_us) / count;
    mean.forward = std::max(0.0, mean.forward - mean.scatter - mean.replicate - mean.gather);
    const double inside = (now.exposed_us - wrapper_first_.exposed_us) / count;
    const double in_update = (now.update_communication_us - wrapper_first_.update_communication_us) / count;
    mean.communication += inside + in_update;
    mean.backward = std::max(0.0, mean.backward - inside);
    mean.update = std::max(0.0, mean.update - in_update);
    hidden = std::max(0.0, (now.communication_us - wrapper_first_.communication_us) / count - inside - in_update);
  }
  run.step_us = mean;
  const double waiting = mean.scatter + mean.replicate + mean.gather + mean.communication;
  run.waiting_share = mean.sum() > 0 ? waiting / mean.sum() : 0;
  run.communication_us = waiting + hidden;
}

}  // namespace duet::cli
