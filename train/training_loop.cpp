#include "train/training_loop.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/backend/step_graph.h"
#include "lib/base/fault_point.h"
#include "lib/base/recovery.h"
#include "lib/base/trace.h"
#include "lib/data/loader.h"
#include "lib/error.h"
#include "lib/ops/losses.h"
#include "lib/optim/optimizer.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"
#include "train/measure/events.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

const char* name_of(double StepParts::*part) {
  for (const PartName& candidate : kStepParts)
    if (candidate.member == part) return candidate.name;
  return "";
}

/// CPU devices read the same memory.
Tensor on_device(const Tensor& tensor, Device device) {
  return device.kind == DeviceKind::cpu ? tensor.alias(device) : tensor.to(device);
}

/// The step of all modes, plain or recorded. Gives the loss, which lies on its device.
Variable step(Setup& setup, const data::Batch& batch, StepClock& clock) {
  fault_point("input");
  const Device device = setup.devices.at(0);
  const Tensor images = setup.scatters ? batch.images : on_device(batch.images, device);
  const Tensor labels = setup.scatters && setup.loss_in_replica ? batch.labels : on_device(batch.labels, device);
  clock.lap(&StepParts::input);
  fault_point("forward");
  if (setup.wrapper) fault_point("wrapped_forward");
  setup.optimizer->zero_grad();
  Variable loss;
  if (setup.loss_in_replica) {
    loss = setup.net()(nn::Value(nn::List{nn::Value(Variable(images)), nn::Value(Variable(labels))})).variable();
    clock.lap(&StepParts::forward);
  } else {
    const Variable output = setup.net()(images);
    clock.lap(&StepParts::forward);
    loss = setup.loss(output, labels);
    clock.lap(&StepParts::loss);
  }
  fault_point("backward");
  clock.note_blocks(ops::block_sums(loss));
  ddp::Work losses;
  if (setup.share_losses) losses = setup.share_losses(clock.noted_blocks(), loss, images.size(0));
  loss.backward();
  losses.wait();
  clock.lap(&StepParts::backward);
  if (setup.average) {
    setup.average();
    clock.lap(&StepParts::communication);
  }
  fault_point("update");
  setup.optimizer->step();
  return loss;
}

/// Runs the steps of one epoch, and times them.
class Steps {
 public:
  Steps(Setup& setup, StepClock& clock)
      : setup_(setup), loader_(*setup.loader), graph_steps_(setup.graph_steps), clock_(clock) {}

  std::int64_t run() { return setup_.graph ? replay() : run_plainly(); }

  /// Reports the steps whose losses are still on the device.
  void settle() {
    if (pending_ == 0) return;
    const double losses = setup_.graph->take_loss_sum();  // waits
    clock_.lap(&StepParts::update, pending_);
    clock_.end_steps(std::exchange(pending_, 0), losses, rows_, global_);
  }

 private:
  std::int64_t run_plainly() {
    if (const std::int64_t all = Recovery::instance().recoveries(); std::exchange(recoveries_, all) != all)
      clock_.skip();
    const data::Batch batch = loader_.batch();
    float mean = 0;
    try {
      mean = named_step(batch).item();  // waits for the device
    } catch (const std::exception&) {
      if (!Recovery::instance().is_void()) throw;
    }
    if (Recovery::instance().is_void()) return 1;  // the loader gives the batch again
    clock_.lap(&StepParts::update);
    clock_.end_step(static_cast<double>(mean), loader_.rows(), loader_.stamp().global);
    return 1;
  }

  /// Where CheckFinite finds something, its error says in which step, the first being 1.
  Variable named_step(const data::Batch& batch) {
    try {
      return step(setup_, batch, clock_);
    } catch (const NumericError& error) {
      throw NumericError(concat("step ", loader_.stamp().step + 1, ": ", error.what()));
    }
  }

  /// Steps of the next launch.
  std::int64_t several() const {
    if (loader_.alike(graph_steps_) < graph_steps_) return 1;
    for (std::int64_t i = 1; i < graph_steps_; ++i)
      if (clock_.needs_loss(pending_ + i)) return 1;
    return graph_steps_;
  }

  std::int64_t replay() {
    if (loader_.rows() != rows_) settle();
    rows_ = loader_.rows();
    global_ = loader_.stamp().global;
    const std::int64_t steps = several();
    loader_.stage(steps);
    setup_.graph->run_several({rows_, loader_.stamp(), setup_.optimizer->lr(), steps},
                              [&](std::int64_t i) { return step(setup_, loader_.batch(i), clock_).value(); });
    pending_ += steps;
    if (clock_.needs_loss(pending_)) settle();
    return steps;
  }

  Setup& setup_;
  data::Loader& loader_;
  std::int64_t graph_steps_;
  StepClock& clock_;
  std::int64_t pending_ = 0, rows_ = 0, global_ = 0;  // steps not reported, all of this size
  std::int64_t recoveries_ = Recovery::instance().recoveries();
};

}  // namespace

RankLane lane_of(const Setup& setup, const ddp::ProcessGroup& group) {
  return {.device = setup.devices.at(0), .rank = group.rank(), .replayed = setup.graph != nullptr};
}

StepClock::StepClock(std::int64_t started_ns, const RankLane& lane) : started_ns_(started_ns), lane_(lane) {}

void StepClock::begin_epoch(std::int64_t steps, std::int64_t done, std::function<bool(std::int64_t)> stops) {
  stops_ = std::move(stops);
  steps_ = std::max<std::int64_t>(1, steps);
  step_ = done;
  epoch_us_ = epoch_images_ = epoch_loss_sum_ = epoch_rows_ = 0;
  const auto points = static_cast<std::size_t>(std::min<std::int64_t>(kLossPoints, steps_));
  loss_sums_.assign(points, 0);
  loss_rows_.assign(points, 0);
  step_us_.reserve(step_us_.size() + static_cast<std::size_t>(steps_));
  first_step_ = done;
  knows_blocks_ = true;
  block_sums_.assign(static_cast<std::size_t>(steps_) * blocks_, 0);
  global_rows_.assign(static_cast<std::size_t>(steps_), 0);
  skip();
}

void StepClock::continue_epoch(std::int64_t steps, std::function<bool(std::int64_t)> stops) {
  stops_ = std::move(stops);
  steps_ = std::max<std::int64_t>(1, steps);
  skip();
}

void StepClock::stream(StateStream& state) {
  for (std::int64_t* const number : {&step_, &first_step_, &run_step_}) state.value(*number);
  for (std::vector<double>* const numbers : {&loss_sums_, &loss_rows_, &block_sums_}) state.sequence(*numbers);
  for (double* const number : {&epoch_loss_sum_, &epoch_rows_, &epoch_us_, &epoch_images_, &communicated_us_})
    state.value(*number);
  state.sequence(global_rows_);
  state.sequence(step_us_);
  state.value(total_);
  state.value(blocks_);
  state.value(knows_blocks_);
}

void StepClock::skip() {
  position_ = Trace::position();
  last_ = step_begin_ = Clock::now();
}

void StepClock::lap(double StepParts::*part, std::int64_t steps) {
  TimedParts::end_part({&lane_.device, 1});
  if (step_ >= steps_) return;  // between epochs
  const Clock::time_point now = Clock::now();
  if (steps == 1)
    Trace::add({.name = name_of(part), .device = lane_.device, .begin_ns = to_ns(last_), .end_ns = to_ns(now)});
  last_ = now;
}

void StepClock::trace_steps(std::int64_t steps) {
  const std::int64_t begin = to_ns(step_begin_), all = to_ns(last_) - begin;
  for (std::int64_t i = 0; i < steps; ++i) {
    TraceEvent step{.name = "step",
                    .kind = TraceEvent::Kind::step,
                    .device = lane_.device,
                    .amount = run_step_++,
                    .begin_ns = begin + all * i / steps,
                    .end_ns = begin + all * (i + 1) / steps};
    Trace::add(step);
    if (steps == 1) continue;  // its parts were traced
    step.name = kReplayed;
    step.kind = TraceEvent::Kind::work;
    Trace::add(step);
  }
}

std::int64_t StepClock::point_of(std::int64_t step) const {
  const auto points = static_cast<std::int64_t>(loss_sums_.size());
  return std::min(step * points / steps_, points - 1);
}

bool StepClock::needs_loss(std::int64_t pending) const {
  const std::int64_t next = step_ + pending;
  return first_ || next >= steps_ || point_of(next) != point_of(step_) || (stops_ && stops_(next));
}

void StepClock::note_blocks(std::span<const float> sums) { noted_blocks_.assign(sums.begin(), sums.end()); }

void StepClock::keep_blocks(std::int64_t steps, std::int64_t global) {
  if (blocks_ == 0 && step_ == first_step_) {
    blocks_ = noted_blocks_.size();
    block_sums_.assign(static_cast<std::size_t>(steps_) * blocks_, 0);
  }
  knows_blocks_ = knows_blocks_ && steps == 1 && noted_blocks_.size() == blocks_;
  if (!knows_blocks()) return;
  std::ranges::copy(noted_blocks_, block_sums_.begin() + step_ * static_cast<std::int64_t>(blocks_));
  global_rows_[static_cast<std::size_t>(step_)] = global;
}

void StepClock::use_blocks() {
  std::ranges::fill(loss_sums_, 0);
  std::vector<float> sums(blocks_);
  for (std::int64_t step = first_step_; step < step_; ++step) {
    const auto begin = block_sums_.begin() + step * static_cast<std::int64_t>(blocks_);
    std::transform(begin, begin + static_cast<std::int64_t>(blocks_), sums.begin(),
                   [](double sum) { return static_cast<float>(sum); });
    const std::int64_t rows = global_rows_[static_cast<std::size_t>(step)];
    loss_sums_[static_cast<std::size_t>(point_of(step))] +=
        static_cast<double>(ops::mean_of_blocks(sums, rows)) * static_cast<double>(rows);
  }
}

void StepClock::end_steps(std::int64_t steps, double losses, std::int64_t rows, std::int64_t global) {
  trace_steps(steps);
  keep_blocks(steps, global);
  position_ = Trace::read(position_, events_);
  const auto count = static_cast<double>(steps);
  const double us = microseconds(last_ - step_begin_);
  step_begin_ = last_;
  if (first_) {
    first_ = false;
    first_end_s_ = static_cast<double>(monotonic_ns() - started_ns_) / 1e9;
  } else {
    add_parts(events_, lane_.device, total_);
    for (const TraceEvent& event : events_)
      if (event.is_communication() && event.device.index == lane_.rank) communicated_us_ += event.us();
    step_us_.insert(step_us_.end(), static_cast<std::size_t>(steps), static_cast<float>(us / count));
    epoch_us_ += us;
    epoch_images_ += count * static_cast<double>(global);
  }
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
  for (const PartName& part : kStepParts) mean.*part.member /= count;
  run.step_us = mean;
  const double waiting = mean.scatter + mean.replicate + mean.gather + mean.communication;
  run.waiting_share = mean.sum() > 0 ? waiting / mean.sum() : 0;
  run.communication_us = lane_.replayed ? 0 : waiting + std::max(0.0, communicated_us_ / count - mean.communication);
}

void train_epoch(Setup& setup, StepClock& clock, const std::function<bool()>& after_step) {
  Steps steps(setup, clock);
  std::int64_t done = 0;
  for (auto at = setup.loader->begin(); at != setup.loader->end(); at += done) {
    done = steps.run();
    if (!after_step()) return steps.settle();
  }
}

std::int64_t count_correct(nn::Module& net, const data::Dataset& data, int rank, int world_size, int workers) {
  constexpr std::int64_t kLeastRows = 16, kMostRows = 1000, kNumbers = 1 << 20;  // limits of a batch's size
  const std::int64_t rows = std::clamp(kNumbers / data.sample_shape().count(), kLeastRows, kMostRows);
  const NoGrad no_grad;
  data::Loader loader(data,
                      std::make_unique<samplers::BlockedBatches>(
                          std::make_unique<samplers::SequentialSampler>(data.size()),
                          samplers::BlockedOptions{
                              .global_batch = rows, .world_size = world_size, .rank = rank, .whole_blocks = false}),
                      data::LoaderOptions{.workers = workers});
  net.eval();
  std::int64_t correct = 0;
  const Device device = net.parameters().device();
  for (auto& [images, labels] : loader) {
    if (images.size(0) == 0) continue;
    const Variable output = net(on_device(images, device));
    correct += backend(output.value()).count_correct(output.value(), on_device(labels, output.device()));
  }
  net.train();
  return correct;
}

}  // namespace duet::cli
