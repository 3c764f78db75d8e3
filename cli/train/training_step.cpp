#include "cli/train/training_step.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/base/fault_point.h"
#include "lib/error.h"
#include "lib/ops/losses.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"

namespace duet::cli {

namespace {

/// CPU devices read the same memory.
Tensor on_device(const Tensor& tensor, Device device) {
  return device.kind == DeviceKind::cpu ? tensor.alias(device) : tensor.to(device);
}

/// The step of all modes, plain or recorded. Gives the loss, which lies on its device.
Variable step(const TrainingStep& training, const data::Batch& batch, StepClock& clock) {
  nn::Module& net = training.net;
  const bool whole = !training.scatters;
  const Tensor images = whole ? on_device(batch.images, training.device) : batch.images;
  const Tensor labels =
      training.scatters && training.loss_in_replica ? batch.labels : on_device(batch.labels, training.device);
  clock.lap(&StepParts::input);
  fault_point("forward");
  training.optimizer.zero_grad();
  Variable loss;
  if (training.loss_in_replica) {
    loss = net(nn::Value(nn::List{nn::Value(Variable(images)), nn::Value(Variable(labels))})).variable();
    clock.lap(&StepParts::forward);
  } else {
    const Variable output = net(images);
    clock.lap(&StepParts::forward);
    loss = ops::nll_loss(output, labels);
    clock.lap(&StepParts::loss);
  }
  fault_point("backward");
  loss.backward();
  clock.lap(&StepParts::backward);
  if (training.average) {
    training.average();
    clock.lap(&StepParts::communication);
  }
  fault_point("update");
  training.optimizer.step();
  return loss;
}

/// Runs the steps of one epoch, and times them.
class Steps {
 public:
  Steps(const TrainingStep& training, data::Loader& loader, StepClock& clock)
      : training_(training), loader_(loader), clock_(clock) {}

  /// Returns how many.
  std::int64_t run() { return training_.graph ? replay() : run_plainly(); }

  /// Reports the steps whose losses are still on the device.
  void settle() {
    if (pending_ == 0) return;
    const double losses = training_.graph->take_loss_sum();  // waits
    clock_.lap(&StepParts::update, pending_);
    clock_.end_steps(std::exchange(pending_, 0), losses, rows_, global_);
  }

 private:
  std::int64_t run_plainly() {
    const data::Batch batch = loader_.batch();
    const float mean = named_step(batch).item();  // waits for the device
    clock_.lap(&StepParts::update);
    clock_.end_step(static_cast<double>(mean), loader_.rows(), loader_.stamp().global);
    return 1;
  }

  /// Where CheckFinite finds something, its error says in which step, the first being 1.
  Variable named_step(const data::Batch& batch) {
    try {
      return step(training_, batch, clock_);
    } catch (const NumericError& error) {
      throw NumericError(concat("step ", loader_.stamp().step + 1, ": ", error.what()));
    }
  }

  /// Steps of the next launch.
  std::int64_t several() const {
    const std::int64_t most = training_.graph_steps;
    if (loader_.alike(most) < most) return 1;
    for (std::int64_t i = 1; i < most; ++i)
      if (clock_.needs_loss(pending_ + i)) return 1;
    return most;
  }

  std::int64_t replay() {
    if (loader_.rows() != rows_) settle();
    rows_ = loader_.rows();
    global_ = loader_.stamp().global;
    const std::int64_t steps = several();
    if (steps > 1) loader_.stage(steps);
    training_.graph->run_several({rows_, loader_.stamp(), training_.optimizer.lr(), steps},
                                 [&](std::int64_t i) { return step(training_, loader_.batch(i), clock_).value(); });
    pending_ += steps;
    if (clock_.needs_loss(pending_)) settle();
    return steps;
  }

  const TrainingStep& training_;
  data::Loader& loader_;
  StepClock& clock_;
  std::int64_t pending_ = 0, rows_ = 0, global_ = 0;  // steps not reported, all of this size
};

}  // namespace

bool train_epoch(const TrainingStep& training, data::Loader& loader, StepClock& clock,
                 const std::function<bool()>& after_step) {
  Steps steps(training, loader, clock);
  std::int64_t done = 0;
  for (auto at = loader.begin(); at != loader.end(); at += done) {
    done = steps.run();
    if (after_step()) continue;
    steps.settle();
    return false;
  }
  return true;
}

std::int64_t count_correct(nn::Module& net, const data::Dataset& data, int rank, int world_size) {
  constexpr std::int64_t kRows = 1000;
  const NoGrad no_grad;
  data::Loader loader(data,
                      std::make_unique<samplers::BlockedBatches>(
                          std::make_unique<samplers::SequentialSampler>(data.size()),
                          samplers::BlockedOptions{.global_batch = kRows, .world_size = world_size, .rank = rank}));
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
