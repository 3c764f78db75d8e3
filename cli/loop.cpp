#include "cli/loop.h"

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/ops/losses.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"

namespace duet::cli {

bool train_epoch(const Trainee& trainee, data::Loader& loader, Recorder& recorder,
                 const std::function<bool()>& after_step) {
  nn::Module& net = trainee.net;
  for (auto& [host_images, host_labels] : loader) {
    const bool whole = !trainee.scatters;
    const Tensor images = whole ? host_images.to(trainee.device) : host_images;
    const Tensor labels = trainee.scatters && trainee.loss_in_replica ? host_labels : host_labels.to(trainee.device);
    recorder.lap(&StepParts::input);
    trainee.optimizer.zero_grad();
    Variable loss;
    if (trainee.loss_in_replica) {
      loss = net(nn::Value(nn::List{nn::Value(Variable(images)), nn::Value(Variable(labels))})).variable();
      recorder.lap(&StepParts::forward);
    } else {
      const Variable output = net(images);
      recorder.lap(&StepParts::forward);
      loss = ops::nll_loss(output, labels);
      recorder.lap(&StepParts::loss);
    }
    loss.backward();
    recorder.lap(&StepParts::backward);
    if (trainee.average) {
      trainee.average();
      recorder.lap(&StepParts::communication);
    }
    trainee.optimizer.step();
    const float mean = loss.item();  // waits for a device that works on its own
    recorder.lap(&StepParts::update);
    recorder.end_step(static_cast<double>(mean), images.size(0), images.stamp_or_self().global);
    if (!after_step()) return false;
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
    const Variable output = net(images.to(device));
    correct += backend(output.value()).count_correct(output.value(), labels.to(output.device()));
  }
  net.train();
  return correct;
}

}  // namespace duet::cli
