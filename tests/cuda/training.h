// A training whose steps run as they are, or as graphs; alone, over the devices of DataParallel, or as one of the ranks
// of a group.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "dp/data_parallel.h"
#include "lib/backend/step_graph.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "tests/cuda/gpu.h"

namespace duet_test {

inline duet::data::ImageDataset some_images(std::int64_t count) {
  const duet::Tensor images = duet::empty({count, 1, 28, 28}, duet::DType::u8),
                     labels = duet::empty({count}, duet::DType::i64);
  duet::Mt19937 generator(3);
  for (std::uint8_t& byte : images.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(generator.randint(0, 256));
  for (std::int64_t& label : labels.span<std::int64_t>()) label = generator.randint(0, 10);
  return {images, labels};
}

/// Of `images` images in global batches of `batch`.
class Training {
 public:
  Training(std::unique_ptr<duet::nn::Module> model, std::int64_t images, std::int64_t batch, bool recorded)
      : Training(std::move(model), images, batch, recorded, kGpu, nullptr, {}) {}
  /// Of the group's rank on this device, if there is a group.
  Training(std::unique_ptr<duet::nn::Module> model, std::int64_t images, std::int64_t batch, bool recorded,
           duet::Device device, duet::ddp::ProcessGroup* group,
           const duet::ddp::DistributedDataParallelOptions& options)
      : model_(std::move(model)), set_(some_images(images), device) {
    model_->to(device);
    if (group != nullptr) wrapper_ = std::make_unique<duet::ddp::DistributedDataParallel>(*model_, *group, options);
    make_rest(images, batch, recorded, {device}, group);
  }
  /// Over several devices.
  Training(std::unique_ptr<duet::nn::Module> model, std::int64_t images, std::int64_t batch, bool recorded,
           const duet::dp::DataParallelOptions& options)
      : model_(std::move(model)),
        set_(some_images(images), options.devices[0]),
        loss_in_replica_(options.loss != nullptr) {
    model_->to(options.devices[0]);
    parallel_ = std::make_unique<duet::dp::DataParallel>(*model_, options);
    make_rest(images, batch, recorded, options.devices, nullptr);
  }

  /// So many steps as one graph from now on, where as many are alike.
  void set_several(std::int64_t steps) { several_ = steps; }

  duet::Tensor step(std::int64_t ahead = 0) {
    auto [images, labels] = loader_->batch(ahead);
    optimizer_->zero_grad();
    const duet::Variable loss = loss_of(images, labels);
    loss.backward();
    optimizer_->step();
    return loss.value();
  }

  /// One epoch; after_step(training) is called behind each step. Returns the sum of its losses.
  template <class AfterStep>
  float epoch(AfterStep after_step) {
    float sum = 0;
    std::int64_t done = 1;
    for (auto at = loader_->begin(); at != loader_->end(); at += done) {
      if (graph_) {
        done = loader_->alike(several_) == several_ ? several_ : 1;
        loader_->stage(done);
        graph_->run_several(key(done), [&](std::int64_t i) { return step(i); });
      } else {
        sum += *step().to(duet::Device{}).data<float>();
      }
      after_step(*this);
    }
    return graph_ ? static_cast<float>(graph_->take_loss_sum()) : sum;
  }
  float epoch() {
    return epoch([](Training&) {});
  }

  duet::StepKey key(std::int64_t steps = 1) const {
    return {loader_->rows(), loader_->stamp(), optimizer_->lr(), steps};
  }
  duet::StepGraph& graph() { return *graph_; }
  duet::optim::SGD& optimizer() { return *optimizer_; }
  duet::data::Loader& loader() { return *loader_; }
  duet::ddp::DistributedDataParallel& wrapper() { return *wrapper_; }
  duet::dp::DataParallel& parallel() { return *parallel_; }
  duet::nn::Module& model() { return *model_; }
  std::vector<double> values() { return as_array(std::as_const(model_->parameters()).values()).values; }

 private:
  void make_rest(std::int64_t images, std::int64_t batch, bool recorded, const std::vector<duet::Device>& devices,
                 duet::ddp::ProcessGroup* group) {
    optimizer_ = std::make_unique<duet::optim::SGD>(*model_, duet::optim::SGDOptions{.lr = 0.05f, .momentum = 0.5f});
    const duet::samplers::BlockedOptions batches{.global_batch = batch,
                                                 .world_size = group != nullptr ? group->size() : 1,
                                                 .rank = group != nullptr ? group->rank() : 0};
    loader_ =
        std::make_unique<duet::data::Loader>(set_,
                                             std::make_unique<duet::samplers::BlockedBatches>(
                                                 std::make_unique<duet::samplers::RandomSampler>(images, 5), batches),
                                             duet::data::LoaderOptions{.deferred = recorded});
    if (recorded) graph_ = std::make_unique<duet::StepGraph>(devices);
  }

  duet::Variable loss_of(const duet::Tensor& images, const duet::Tensor& labels) {
    using duet::Variable, duet::nn::Value;
    if (loss_in_replica_)
      return (*parallel_)(Value(duet::nn::List{Value(Variable(images)), Value(Variable(labels))})).variable();
    duet::nn::Module* net = model_.get();
    if (wrapper_) net = wrapper_.get();
    if (parallel_) net = parallel_.get();
    return duet::ops::nll_loss((*net)(images), labels);
  }

  std::unique_ptr<duet::nn::Module> model_;
  duet::data::ResidentImages set_;
  bool loss_in_replica_ = false;
  std::unique_ptr<duet::ddp::DistributedDataParallel> wrapper_;
  std::unique_ptr<duet::dp::DataParallel> parallel_;
  std::unique_ptr<duet::optim::SGD> optimizer_;
  std::unique_ptr<duet::data::Loader> loader_;
  std::unique_ptr<duet::StepGraph> graph_;
  std::int64_t several_ = 1;
};

/// Without the values in the test's output: there are many.
inline bool same_values(Training& a, Training& b) { return a.values() == b.values(); }

}  // namespace duet_test
