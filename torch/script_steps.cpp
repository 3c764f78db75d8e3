// The module libduet_torch: training steps of TorchScript networks, for `duet compare --vs-torch`. The work of a step
// is that of tools/torch_peer.py.
#include "ddp/script_steps.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "torch/ddp.h"
#include "torch/script_file.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {
namespace {

using ddp::ScriptStepsOptions;
using ddp::ScriptStepTimes;
using ddp::ScriptSync;

constexpr std::uint64_t kSeed = 1234;
constexpr double kLearningRate = 0.01, kMomentum = 0.5;

std::vector<at::Tensor> parameters_of(const ScriptModule& network) {
  std::vector<at::Tensor> parameters;
  for (const NamedTensorRef& parameter : tensors_of(network).parameters) parameters.push_back(parameter.value);
  return parameters;
}

class Steps final : public ddp::ScriptSteps {
 public:
  Steps(const ScriptStepsOptions& options, ddp::ProcessGroup& group)
      : options_(options),
        group_(group),
        network_(load_script(options.file)),
        parameters_(parameters_of(network_)),
        optimizer_(parameters_, ::torch::optim::SGDOptions(kLearningRate).momentum(kMomentum)) {
    require<UsageError>(options.rows >= 1 && options.images / group.size() > options.rows, options.images,
                        " images for ", group.size(), " ranks with batches of ", options.rows);
    at::set_num_threads(options.threads);
    at::manual_seed(kSeed);
    draw();
    if (options.sync == ScriptSync::wrapper) wrapper_.emplace(network_, group);
  }

  ScriptStepTimes run(bool synchronises) override {
    if (synchronises || !wrapper_) return step(synchronises);
    const auto no_sync = wrapper_->no_sync();
    return step(false);
  }

  double drawing_us() const override { return drawing_us_; }
  const char* version() const override { return TORCH_VERSION; }

 private:
  using Wrapper = DistributedDataParallel<ScriptModule>;

  /// Times of the wrapper's buckets.
  struct BucketTimes {
    double exposed_us = 0;        // what backward waited for them
    double communication_us = 0;  // from the begin of the first to the end of the last
  };
  BucketTimes buckets_since(std::uint64_t position) {
    BucketTimes found;
    if (!wrapper_) return found;
    std::int64_t begin_ns = INT64_MAX;
    Trace::read(position, events_);
    for (const TraceEvent& event : events_) {
      if (event.is_communication() && event.device.index == group_.rank())
        begin_ns = std::min(begin_ns, event.begin_ns);
      if (std::string_view(event.name) != "communication" || event.amount != group_.rank()) continue;
      found.exposed_us += event.us();
      found.communication_us = static_cast<double>(event.end_ns - std::min(begin_ns, event.begin_ns)) / 1e3;
    }
    return found;
  }

  ScriptStepTimes step(bool synchronises) {
    const std::int64_t begin = done_++ * options_.rows % (order_.size(0) - options_.rows);
    const Clock::time_point start = Clock::now();
    const at::Tensor picked = order_.narrow(0, begin, options_.rows);
    optimizer_.zero_grad();
    const at::Tensor loss = loss_of(images_.index({picked}), labels_.index({picked}));
    const Clock::time_point forward_end = Clock::now();
    const std::uint64_t position = Trace::position();
    loss.backward();
    const Clock::time_point backward_end = Clock::now();
    double averaging = 0;
    if (synchronises && options_.sync == ScriptSync::averaged) {
      average();
      averaging = microseconds_since(backward_end);
    }
    optimizer_.step();
    total_ += loss.detach();
    const double whole = microseconds_since(start);
    const BucketTimes buckets = buckets_since(position);
    return {.whole = whole,
            .forward = microseconds(forward_end - start),
            .backward = microseconds(backward_end - forward_end) - buckets.exposed_us,
            .exposed = averaging + buckets.exposed_us,
            .communication = averaging + buckets.communication_us,
            .loss = loss.item<double>()};
  }

  void draw() {
    const Clock::time_point start = Clock::now();
    const Shape& sample = options_.sample_shape;
    // Ranks that are threads share LibTorch's own generator.
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
    images_ = at::randn({options_.images, sample[0], sample[1], sample[2]}, generator);
    labels_ = at::randint(options_.classes, {options_.images}, generator, at::kLong);
    drawing_us_ = microseconds_since(start);
    const at::Tensor order = at::randperm(options_.images, generator, at::kLong);
    order_ = order.slice(0, group_.rank(), options_.images, group_.size());
  }

  at::Tensor loss_of(const at::Tensor& images, const at::Tensor& labels) {
    std::vector<at::IValue> inputs = {images};
    const at::IValue output = wrapper_ ? wrapper_->forward(std::move(inputs)) : call(network_, std::move(inputs));
    return options_.nll_loss ? at::nll_loss(output.toTensor(), labels)
                             : at::cross_entropy_loss(output.toTensor(), labels);
  }

  void average() {
    for (const at::Tensor& parameter : parameters_) {
      at::Tensor gradient = parameter.grad();
      group_.all_reduce(std::span(gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel()))).wait();
      gradient /= group_.size();
    }
  }

  ScriptStepsOptions options_;
  ddp::ProcessGroup& group_;
  ScriptModule network_;
  std::vector<at::Tensor> parameters_;
  ::torch::optim::SGD optimizer_;
  std::optional<Wrapper> wrapper_;  // for ScriptSync::wrapper
  at::Tensor images_, labels_, order_, total_ = at::zeros({});
  std::vector<TraceEvent> events_;
  double drawing_us_ = 0;
  std::int64_t done_ = 0;
};

}  // namespace
}  // namespace duet::torch

extern "C" duet::ddp::ScriptSteps* duet_torch_steps(const duet::ddp::ScriptStepsOptions* options,
                                                    duet::ddp::ProcessGroup* group) {
  return new duet::torch::Steps(*options, *group);
}
