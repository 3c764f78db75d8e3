// The scenarios of ranks that train a model together.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "ddp/distributed_data_parallel.h"
#include "ddp/init.h"
#include "ddp/tutorial.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "tests/ddp/train.h"
#include "tests/ddp/worker.h"

using namespace duet;
using namespace duet::ddp;

namespace duet_test {
namespace {

/// y = w x without a bias.
struct Scalar : nn::Linear {
  explicit Scalar(float value) : nn::Linear(1, 1, false) { parameters().values().span<float>()[0] = value; }
  float gradient() { return parameters().gradients().span<float>()[0]; }
};

/// Two layers of which forward uses one.
struct HalfUsed : nn::Module {
  HalfUsed() {
    register_module("used", used);
    register_module("unused", unused);
  }
  Variable forward(nn::Context& context, const Variable& x) const override { return used.forward(context, x); }
  using nn::Module::forward;
  std::string type_name() const override { return "HalfUsed"; }
  nn::Linear used{1, 1, false}, unused{1, 1, false};
};

/// (w x)^2, whose gradient is 2 x^2 w.
Variable square(nn::Module& net, float x) {
  return ops::mse_loss(net(from_values<float>({1, 1}, {x})), from_values<float>({1, 1}, {0.0f}));
}

void run_training(const Arguments& arguments) {
  const auto group = init_process_group();
  // Only rank 0 has the right seed: the others get its values.
  nn::SimpleCNN model(kSeed + static_cast<std::uint64_t>(group->rank()));
  DistributedDataParallelOptions options;
  if (arguments.size() > 2) options.bucket_limits = {std::stoul(arguments[2])};
  DistributedDataParallel net(model, *group, options);
  train(model, net, std::stol(arguments.at(1)), group->rank(), group->size());
  std::cout << fingerprint(model) << std::endl;
}

void run_gradient(const Arguments& arguments) {
  const auto group = init_process_group();
  Scalar model(5);
  const float x = static_cast<float>(group->rank() + 1);
  const std::string& rule = arguments.at(1);
  if (rule == "average") {
    square(model, x).backward();
    average_gradients(model, *group);
  } else {
    require<UsageError>(rule == "torch" || rule == "rows", "no rule for gradients is called '", rule, "'");
    DistributedDataParallel net(model, *group, {.rule = rule == "torch" ? GradientRule::torch : GradientRule::rows});
    square(net, x).backward();
  }
  std::cout << model.gradient() << std::endl;
}

void run_no_sync(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.rule = GradientRule::torch});
  const float x = std::sqrt(static_cast<float>(group->rank() + 1) / 2);
  square(net, x).backward();
  std::cout << model.gradient() << std::endl;
  {
    const auto guard = net.no_sync();
    square(net, x).backward();
    std::cout << model.gradient() << std::endl;
  }
  square(net, x).backward();
  std::cout << model.gradient() << std::endl;
}

void run_unused(const Arguments& arguments) {
  const bool allowed = arguments.at(1) == "allowed";
  require<UsageError>(allowed || arguments[1] == "error", "unused parameters are 'allowed' or an 'error', got '",
                      arguments[1], "'");
  const auto group = init_process_group();
  HalfUsed model;
  model.initialise(3);
  DistributedDataParallel net(model, *group, {.find_unused_parameters = allowed});
  square(net, 1).backward();
  std::cout << model.parameters().gradient(1).span<float>()[0] << std::endl;
}

/// Rank r trains r + 1 steps.
void run_join(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.rule = GradientRule::torch});
  optim::SGD opt(model, {.lr = 0.25f});
  net.join([&] {
    for (int step = 0; step <= group->rank(); ++step) {
      opt.zero_grad();
      square(net, 1).backward();
      opt.step();
    }
  });
  std::cout << model.parameters().values().span<float>()[0] << " " << net.steps() << std::endl;
}

/// Running statistics, where rank 0 stops first; batches of rank r have the mean 4 r.
void run_join_buffers(const Arguments&) {
  const auto group = init_process_group();
  nn::BatchNorm2d model(1);
  DistributedDataParallel net(model, *group);
  const float mean = 4 * static_cast<float>(group->rank());
  const Tensor x = from_values<float>({2, 1, 1, 1}, {mean - 1, mean + 1});
  net.join([&] {
    for (int step = 0; step <= 2 * group->rank(); ++step) {
      model.zero_grad();
      ops::mse_loss(net(x), from_values<float>({2, 1, 1, 1}, {0.0f, 0.0f})).backward();
    }
  });
  std::printf("%.3f\n", static_cast<double>(model.state_dict().at(2).tensor.span<float>()[0]));
  std::fflush(stdout);
}

/// Rank 1's parameter is changed after the first step.
void run_compare(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.compare_parameters_every = 3});
  for (int step = 1;; ++step) {
    model.zero_grad();
    square(net, 1).backward();
    if (step == 1 && group->rank() == 1) model.parameters().values().span<float>()[0] += 1;
  }
}

}  // namespace

bool run_model_scenario(const Arguments& arguments) {
  static const std::map<std::string, void (*)(const Arguments&)> scenarios = {
      {"train", run_training}, {"gradient", run_gradient},         {"no_sync", run_no_sync}, {"unused", run_unused},
      {"join", run_join},      {"join_buffers", run_join_buffers}, {"compare", run_compare},
  };
  const auto scenario = scenarios.find(arguments.at(0));
  if (scenario == scenarios.end()) return false;
  scenario->second(arguments);
  return true;
}

}  // namespace duet_test
