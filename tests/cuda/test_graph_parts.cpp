// Recorded steps of a model whose parts have optimizers of their own, and whose dropout runs at two places.
#include <cstdint>
#include <memory>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/backend/step_graph.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/training.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet_test;

namespace {

/// The head learns fast, the rest slowly, the backbone may be frozen, and each batch has two forwards.
class PartsTraining {
 public:
  PartsTraining(const std::vector<Device>& devices, bool recorded)
      : set_(some_images(16), devices[0]), head_(on(devices[0]).head, {.lr = 0.05f, .momentum = 0.5f}) {
    if (devices.size() > 1) wrapper_ = std::make_unique<dp::DataParallel>(model_, dp::DataParallelOptions{devices});
    loader_ = std::make_unique<data::Loader>(
        set_,
        std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::RandomSampler>(16, 5),
                                                   samplers::BlockedOptions{.global_batch = 4}),
        data::LoaderOptions{.deferred = recorded});
    if (recorded) graph_ = std::make_unique<StepGraph>(devices);
  }

  void epoch() {
    for (auto at = loader_->begin(); at != loader_->end(); ++at) {
      if (graph_ == nullptr) {
        step();
        continue;
      }
      loader_->stage(1);
      graph_->run({loader_->rows(), loader_->stamp(), head_.lr()}, [&] { return step(); });
    }
    if (graph_) graph_->take_loss_sum();
    if (wrapper_) CHECK_NOTHROW(wrapper_->require_same_replicas());
  }
  /// Parameters and running statistics.
  std::vector<double> values() {
    std::vector<double> all;
    for (const NamedTensor& one : model_.state_dict()) {
      if (one.tensor.dtype() != DType::f32) continue;
      const std::vector<double> values = as_array(one.tensor).values;
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  void freeze(bool on) { model_.backbone.train(!on); }
  optim::SGD& rest() { return backbone_; }
  StepGraph& graph() { return *graph_; }

 private:
  TwoParts& on(Device device) {
    model_.to(device);
    return model_;
  }
  Tensor step() {
    auto [images, labels] = loader_->batch();
    nn::Module& net = wrapper_ ? static_cast<nn::Module&>(*wrapper_) : model_;
    head_.zero_grad();
    backbone_.zero_grad();
    hidden_.zero_grad();
    net(images);
    const Variable loss = ops::nll_loss(net(images), labels);
    loss.backward();
    head_.step();
    backbone_.step();
    hidden_.step();
    return loss.value();
  }

  TwoParts model_;
  data::ResidentImages set_;
  optim::SGD head_;
  optim::SGD backbone_{model_.backbone, {.lr = 0.01f, .momentum = 0.9f}}, hidden_{model_.hidden, {.lr = 0.01f}};
  std::unique_ptr<dp::DataParallel> wrapper_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<StepGraph> graph_;
};

}  // namespace

DUET_CUDA_TEST("cuda: recorded steps of optimizers of parts train the very bits of plain ones") {
  for (const int count : {1, 2}) {
    CAPTURE(count);
    const bool distinct = backend(DeviceKind::cuda).device_count() >= count;
    const std::vector<Device> devices = distinct ? first_devices(DeviceKind::cuda, count) : logical_devices(count);
    PartsTraining plain(devices, false), recorded(devices, true);
    for (int epoch = 0; epoch < 8; ++epoch) {
      for (PartsTraining* const one : {&plain, &recorded}) one->freeze(epoch < 3 || epoch > 5);
      plain.epoch();
      recorded.epoch();
      const bool same = recorded.values() == plain.values();  // many
      CHECK(same);
    }
    CHECK(recorded.graph().recordings() == 2);
    CHECK(recorded.graph().replays() > 8);
    if (count == 1) continue;
    recorded.rest().load_state(plain.rest().state());
    CHECK_THROWS_WITH(recorded.epoch(), ContainsSubstring("state was replaced after the step was recorded"));
  }
}
