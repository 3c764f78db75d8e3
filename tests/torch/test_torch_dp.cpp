// DataParallel of LibTorch modules.
#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/device.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/torch/networks.h"
#include "torch/dp.h"

using namespace duet_test;
using duet::torch::DataParallel;

namespace {

std::vector<duet::Device> cpus(int count) { return duet::first_devices(duet::DeviceKind::cpu, count); }

/// The same whatever the number of replicas, to rounding.
template <class Network>
void compare(int devices) {
  INFO(Network::kName << " on " << devices << " devices");
  at::set_num_threads(1);
  auto alone = make_with_values<Network>();
  DataParallel net([] { return make_with_values<Network>(); }, cpus(devices));
  const auto module = &net.module();
  torch::optim::SGD of_alone(parameters_of(*alone), torch::optim::SGDOptions(0.05).momentum(0.5));
  torch::optim::SGD of_net(parameters_of(*module), torch::optim::SGDOptions(0.05).momentum(0.5));
  for (int step = 0; step < 3; ++step) {
    of_alone.zero_grad();
    of_net.zero_grad();
    const Tensor expected = Network::loss(*alone, Network::batch(step), {}),
                 loss = Network::loss(net, Network::batch(step), {});
    CHECK((expected - loss).abs().item<double>() < 1e-6);
    expected.backward();
    loss.backward();
    CHECK(largest_difference(gradients_of(parameters_of(*alone)), gradients_of(parameters_of(*module))) < 1e-6);
    of_alone.step();
    of_net.step();
  }
  CHECK(largest_difference(parameters_of(*alone), parameters_of(*module)) < 1e-6);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

struct Pair : nn::Cloneable<Pair> {
  Pair() { reset(); }
  void reset() override {
    linear = register_module("linear", nn::Linear(3, 2));
    calls = register_buffer("calls", torch::zeros({1}));
  }
  std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& x, const std::vector<Tensor>& others, double factor) {
    calls += 1;
    if (fails_at >= 0 && x.size(0) == fails_at) throw duet::DataError("planted");
    return {linear(x) * factor, {others[0] + 1, x.sum()}};
  }
  nn::Linear linear{nullptr};
  Tensor calls;
  std::int64_t fails_at = -1;
};

}  // namespace

TEST_CASE("LibTorch: replicas give the outputs and gradients of one module") {
  for (const int devices : {1, 2, 3, 4}) compare<SimpleCnn>(devices);
  compare<UnusedBranches>(2);
  compare<Script>(3);
}

TEST_CASE("LibTorch: replicas on GPUs where there are none are an error with duet's reason") {
  const std::string why = duet::why_no_cuda();
  if (why.empty()) DUET_SKIP("there is a GPU");
  const auto gpus = duet::first_devices(duet::DeviceKind::cuda, 2);
  CHECK(error_of([&] { DataParallel net([] { return make_with_values<SimpleCnn>(); }, gpus); }) ==
        "no CUDA device: " + why);
}

TEST_CASE("LibTorch: replicas are cut from several inputs, and their outputs joined") {
  torch::nn::ModuleHolder<Pair> module(std::make_shared<Pair>());
  DataParallel net(module, cpus(3));
  CHECK(&net.module() == module.get());
  Tensor x = wave({7, 3}, 0), y = wave({7, 2}, 1);
  x.requires_grad_();
  const auto [output, others] = net(x, std::vector<Tensor>{y}, 2.0);
  CHECK(torch::allclose(output, module->linear(x) * 2));
  CHECK(torch::equal(others[0], y + 1));
  CHECK(torch::allclose(others[1], torch::stack({x.narrow(0, 0, 3).sum(), x.narrow(0, 3, 3).sum(), x[6].sum()})));
  (output.sum() + 3 * others[1].sum()).backward();
  const Tensor expected = (2 * module->linear->weight.sum(0) + 3).expand({7, 3});
  CHECK(torch::allclose(x.grad(), expected));
  CHECK(torch::allclose(module->linear->bias.grad(), torch::full({2}, 14.0)));
  CHECK(module->calls.item<float>() == 1.0f);
  // Two rows use two replicas, one row uses one; without gradients there is no tape.
  CHECK(std::get<0>(net(x.narrow(0, 0, 2), std::vector<Tensor>{y.narrow(0, 0, 2)}, 1.0)).size(0) == 2);
  CHECK(std::get<0>(net(x.narrow(0, 0, 1), std::vector<Tensor>{y.narrow(0, 0, 1)}, 1.0)).size(0) == 1);
  const torch::NoGradGuard no_grad;
  CHECK(!std::get<0>(net(x, std::vector<Tensor>{y}, 1.0)).requires_grad());
}

TEST_CASE("LibTorch: replicas of a batch norm have the module's statistics, and the first one's count") {
  auto alone = make_with_values<BatchNorm>();
  DataParallel net([] { return make_with_values<BatchNorm>(); }, cpus(2));
  const Tensor x = wave({8, 2, 6, 6}, 0);
  alone->forward(x.narrow(0, 0, 4));
  net(x);
  CHECK(torch::allclose(net->bn->running_mean, alone->bn->running_mean));
  alone->eval();
  net->eval();
  CHECK(torch::allclose(net(x), alone->forward(x), 1e-5, 1e-6));
}

TEST_CASE("LibTorch: what a replica throws names it and its device") {
  DataParallel net(
      [] {
        auto module = std::make_shared<Pair>();
        module->fails_at = 1;
        return module;
      },
      cpus(2));
  const std::vector<Tensor> others{wave({3, 2}, 0)};
  CHECK(error_of([&] { net(wave({3, 3}, 0), others, 1.0); }) == "replica 1 on device cpu:1: planted");
  CHECK_THAT(error_of([&] { net(wave({4, 3}, 0), others, 1.0); }), ContainsSubstring("expected the 4 rows"));
}

TEST_CASE("LibTorch: misuse of DataParallel is an error") {
  const auto make = [] { return make_with_values<SimpleCnn>(); };
  CHECK_THROWS_AS(DataParallel(make, {}), duet::UsageError);
  const duet::Device second{duet::DeviceKind::cpu, 1};
  CHECK_THAT(error_of([&] { DataParallel(make, {second, second}); }), ContainsSubstring("cpu:1 is named twice"));
  CHECK_THROWS_AS(DataParallel(make, {duet::Device{duet::DeviceKind::cuda}}), duet::DeviceError);
  int made = 0;
  CHECK_THAT(error_of([&] { DataParallel([&] { return nn::Linear(2, ++made); }, cpus(2)); }),
             ContainsSubstring("replica 1 has weight [2, 2] Float where the module has weight [1, 2] Float"));
  DataParallel net(make, cpus(2));
  const Tensor loss = SimpleCnn::loss(net, SimpleCnn::batch(0), {});
  net->fc1->bias.data().add_(1);  // through data: as an optimizer that changes values in place
  {
    const torch::NoGradGuard no_grad;
    net->fc1->bias.add_(1);
  }
  CHECK_THAT(error_of([&] { loss.backward(); }), ContainsSubstring("fc1.bias was changed between"));
  CHECK_THAT(error_of([&] { SimpleCnn::loss(net, SimpleCnn::batch(0), {}).backward({}, true, true); }),
             ContainsSubstring("create_graph"));
}
