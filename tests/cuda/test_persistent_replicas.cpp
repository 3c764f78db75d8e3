// Persistent replicas on devices of their own: whatever is done between steps, the parameters are those of replicas
// that get a copy in every step, bit for bit.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/cuda/gpu.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

enum class Rule { sgd, adamw };

std::unique_ptr<optim::Optimizer> make_optimizer(nn::Module& model, Rule rule) {
  if (rule == Rule::adamw) return std::make_unique<optim::AdamW>(model, optim::AdamWOptions{.lr = 0.1f});
  return std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1f, .momentum = 0.9f});
}

/// A small model under DataParallel with its optimizer, and batches of its own.
struct ReplicaTraining {
  ReplicaTraining(const std::vector<Device>& on, dp::Refresh refresh, Rule the_rule = Rule::sgd)
      : devices(on),
        model(9, 3),
        rule(the_rule),
        held_optimizer(make_optimizer((model.to(on[0]), model), rule)),
        optimizer(*held_optimizer),
        net(model, {.devices = on, .replicas = refresh}) {}

  Variable loss(nn::Module& through, std::int64_t rows = 8) {
    Mt19937 generator(static_cast<std::uint64_t>(++batches));
    Tensor x = empty({rows, 9}), target = empty({rows, 3});
    generator.uniform(x.span<float>(), -1.0, 1.0);
    generator.uniform(target.span<float>(), -1.0, 1.0);
    x.set_stamp({batches, 0, rows});
    const Device device = model.parameters().device();
    return ops::mse_loss(through(x.to(device)), target.to(device));
  }
  /// A step that calls `before_update` between backward and update.
  void step(const std::function<void()>& before_update, std::int64_t rows = 8) {
    optimizer.zero_grad();
    loss(net, rows).backward();
    before_update();
    optimizer.step();
  }
  void step(std::int64_t rows = 8) {
    step([] {}, rows);
  }
  /// Copies to and from the last device so far.
  std::uint64_t moved() const { return backend(DeviceKind::cuda).use(devices.back()).moved; }

  std::vector<Device> devices;
  nn::TutorialLinear model;
  Rule rule;
  std::unique_ptr<optim::Optimizer> held_optimizer;
  optim::Optimizer& optimizer;
  dp::DataParallel net;
  std::int64_t batches = 0;
};

using Story = std::function<void(ReplicaTraining&)>;

struct Between {
  const char* what;
  Story story;
};

/// What may happen to a model between steps.
const std::vector<Between> kStories = {
    {"steps only", [](ReplicaTraining& t) { t.step(); }},
    {"a batch with fewer rows than devices", [](ReplicaTraining& t) { t.step(1); }},
    {"evaluation between the steps",
     [](ReplicaTraining& t) {
       const NoGrad guard;
       t.loss(t.net);
     }},
    {"clipped gradients", [](ReplicaTraining& t) { t.step([&] { optim::clip_grad_norm(t.model, 0.01); }); }},
    {"gradients of two batches", [](ReplicaTraining& t) { t.step([&] { t.loss(t.net).backward(); }); }},
    {"a step without the wrapper",
     [](ReplicaTraining& t) {
       t.optimizer.zero_grad();
       t.loss(t.model).backward();
       t.optimizer.step();
     }},
    {"two forwards in one loss",
     [](ReplicaTraining& t) {
       t.optimizer.zero_grad();
       const Variable first = t.loss(t.net);
       t.loss(t.net).backward();
       first.backward();
       t.optimizer.step();
     }},
    {"gradients written by hand",
     [](ReplicaTraining& t) {
       t.step([&] {
         const Tensor gradient = t.model.parameters().gradient(0);
         backend(gradient).scale(gradient, 0.5f);
       });
     }},
    {"gradients written by a hook",
     [](ReplicaTraining& t) {
       const nn::HookHandle hook = t.model.parameters().hooks().on_grad_ready([&](int slot) {
         const Tensor gradient = t.model.parameters().gradient(slot);
         backend(gradient).scale(gradient, 0.5f);
       });
       t.step();
     }},
    {"gradients of one slot only",
     [](ReplicaTraining& t) {
       t.optimizer.zero_grad();
       const Tensor gradient = t.model.parameters().gradient(1);
       backend(gradient).fill(gradient, 0.25f);
       t.model.parameters().set_filled(1);
       t.optimizer.step();
     }},
    {"values loaded",
     [](ReplicaTraining& t) {
       nn::TutorialLinear other(9, 3);
       other.initialise(std::uint64_t{77});
       t.model.load_state_dict(other.state_dict());
     }},
    {"values initialised", [](ReplicaTraining& t) { t.net.initialise(std::uint64_t{77}); }},
    {"values written between backward and update",
     [](ReplicaTraining& t) {
       t.step([&] {
         const Tensor value = t.model.parameters().value(0);
         backend(value).fill(value, 0.125f);
       });
     }},
    {"optimizer's state loaded",
     [](ReplicaTraining& t) {
       nn::TutorialLinear other(9, 3);
       const auto from = make_optimizer(other, t.rule);
       other.zero_grad();
       ops::mse_loss(other(from_values<float>({1, 9}, std::vector<float>(9, 1))), zeros({1, 3})).backward();
       from->step();
       t.optimizer.load_state(from->state());
     }},
    {"another wrapper in turn",
     [](ReplicaTraining& t) {
       dp::DataParallel other(t.model, {.devices = {t.devices[0], t.devices[1]}});
       t.optimizer.zero_grad();
       t.loss(other).backward();
       t.optimizer.step();
       t.step();
       t.step([&] { t.loss(other); });
     }},
};

Array train(const std::vector<Device>& devices, dp::Refresh refresh, Rule rule, const Between& between) {
  ReplicaTraining training(devices, refresh, rule);
  for (int i = 0; i < 2; ++i) {
    training.step();
    between.story(training);
    training.step();
    training.net.require_same_replicas();
  }
  return as_array(std::as_const(training.model.parameters()).values());
}

}  // namespace

DUET_CUDA_TEST("cuda: persistent replicas have the bits of those copied in every step, whatever comes between",
               "[dp]") {
  int count = 2;
  for (const Between& between : kStories) {
    count = 5 - count;  // 3 and 2 in turn
    const std::vector<Device> devices = some_devices(count);
    CAPTURE(count, between.what);
    for (const Rule rule : {Rule::sgd, Rule::adamw})
      CHECK(train(devices, dp::Refresh::persistent, rule, between).values ==
            train(devices, dp::Refresh::per_forward, rule, between).values);
  }
}

DUET_CUDA_TEST("cuda: persistent replicas get one copy of the parameters", "[dp]") {
  ReplicaTraining persistent(some_devices(2), dp::Refresh::persistent),
      copied(some_devices(2), dp::Refresh::per_forward);
  const auto copied_by_a_forward = [](ReplicaTraining& training) {
    training.step();
    training.step();
    const std::uint64_t before = training.moved();
    training.loss(training.net);
    return training.moved() - before;
  };
  const std::size_t parameters = persistent.model.parameters().gradients().bytes();
  CHECK(copied_by_a_forward(copied) == copied_by_a_forward(persistent) + parameters);
}

DUET_CUDA_TEST("cuda: a replica that holds other parameters than the model is found", "[dp]") {
  ReplicaTraining training(some_devices(2), dp::Refresh::persistent);
  const Tensor kept = training.model.parameters().values();  // against the rule
  training.step();
  CHECK_NOTHROW(training.net.require_same_replicas());
  backend(kept).scale(kept, 2);
  CHECK_THROWS_WITH(
      training.net.require_same_replicas(),
      ContainsSubstring("replica 1 on device cuda:") && ContainsSubstring("holds other parameters than the model"));
}
