// Values stay where optimizers, wrappers and tapes hold them, or the change is refused.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;
using duet_test::ContainsSubstring;

namespace {

const Device kOther{DeviceKind::cpu, 1};

std::vector<float> values_of(Module& model) {
  const auto values = std::as_const(model.parameters()).values().span<float>();
  return {values.begin(), values.end()};
}

/// Conv, batch norm (buffers) and linear.
std::unique_ptr<Sequential> small_net() {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>(1, 2, 3);
  net->add<SyncBatchNorm>(2);
  net->add<Flatten>();
  net->add<Linear>(8, 3);
  return net;
}

void step(Module& net, optim::SGD& opt) {
  Mt19937 generator(5);
  Tensor x = empty({8, 1, 4, 4});
  generator.uniform(x.span<float>(), -1.0, 1.0);
  x.set_stamp({1, 0, 8});
  opt.zero_grad();
  ops::mse_loss(net(x), zeros({8, 3}).set_stamp({1, 0, 8})).backward();
  opt.step();
}

/// What a training from the initial values of seed 9 ends with.
std::vector<float> trained_afresh() {
  const auto model = small_net();
  model->initialise(std::uint64_t{9});
  optim::SGD opt(*model, {.lr = 0.1f});
  for (int i = 0; i < 3; ++i) step(*model, opt);
  return values_of(*model);
}

}  // namespace

TEST_CASE("initialise draws into the values that optimizers and wrappers hold") {
  const std::vector<float> expected = trained_afresh();
  for (const int devices : {0, 1, 2}) {  // 0: without a wrapper
    CAPTURE(devices);
    const auto model = small_net();
    optim::SGD opt(*model, {.lr = 0.1f});
    const FlatParameters* const before = &model->parameters();
    std::unique_ptr<dp::DataParallel> wrapper;
    if (devices > 0)
      wrapper = std::make_unique<dp::DataParallel>(
          *model, dp::DataParallelOptions{.devices = first_devices(DeviceKind::cpu, devices)});
    Module& net = wrapper ? static_cast<Module&>(*wrapper) : *model;
    step(net, opt);
    net.initialise(std::uint64_t{9});
    CHECK(&model->parameters() == before);
    for (const float mean : model->state_dict()[4].tensor.span<float>()) CHECK(mean == 0);
    CHECK_FALSE(model->parameters().has_gradient(0));
    for (int i = 0; i < 3; ++i) step(net, opt);
    CHECK(values_of(*model) == expected);
  }
}

TEST_CASE("initialise draws into the values that DistributedDataParallel holds") {
  const auto train = [](ddp::ProcessGroup& group, bool twice) {
    TutorialLinear model(4, 2);
    model.initialise(std::uint64_t{3});
    ddp::DistributedDataParallel net(model, group);
    optim::SGD opt(model, {.lr = 0.1f});
    const auto steps = [&] {
      for (std::int64_t i = 0; i < 3; ++i) {
        Tensor x = zeros({4, 4});
        backend(x).fill(x, 0.5f + static_cast<float>(i));
        x.set_stamp({i, 4 * group.rank(), 4 * group.size()});
        opt.zero_grad();
        ops::mse_loss(net(x), zeros({4, 2}).set_stamp(x.stamp())).backward();
        opt.step();
      }
    };
    steps();
    const std::vector<float> once = values_of(model);
    if (!twice) return once;
    model.initialise(std::uint64_t{3});
    group.barrier().wait();
    steps();
    return values_of(model);
  };
  std::vector<std::vector<float>> once(2), twice(2);
  ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
    once[static_cast<std::size_t>(group.rank())] = train(group, false);
    twice[static_cast<std::size_t>(group.rank())] = train(group, true);
  });
  CHECK(once == twice);
  CHECK(once[0] == once[1]);
}

TEST_CASE("tensors taken before DistributedDataParallel hold what it trains, and write what it loads") {
  ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
    TutorialLinear model(4, 2);
    model.initialise(std::uint64_t{3});
    FlatParameters& store = model.parameters();
    const std::vector<NamedTensor> state = model.state_dict();
    const Tensor gradient = store.gradient(0), gradients = store.gradients(), alias = gradients.alias(kOther);
    const auto is = [](const Tensor& earlier, const Tensor& now) {
      return std::ranges::equal(earlier.span<float>(), now.span<float>());
    };
    for (int wraps = 0; wraps < 2; ++wraps) {
      ddp::DistributedDataParallel net(model, group);
      optim::SGD opt(model, {.lr = 0.1f});
      Tensor x = zeros({4, 4});
      backend(x).fill(x, static_cast<float>(1 + group.rank() + wraps));
      opt.zero_grad();
      ops::mse_loss(net(x), zeros({4, 2})).backward();
      opt.step();
      require(gradient.span<float>()[0] != 0, "there is no gradient");
      require(is(gradient, store.gradient(0)) && is(gradients, store.gradients()) && is(alias, store.gradients()),
              "gradients taken earlier lie where they were");
      require(is(state[0].tensor, store.value(0)), "values taken earlier lie where they were");
      backend(state[0].tensor).fill(state[0].tensor, 0.5f);
      require(is(state[0].tensor, store.value(0)), "what is loaded does not reach the model");
      group.barrier().wait();
    }
  });
}

TEST_CASE("initialise stays on the device that the values were moved to") {
  TutorialLinear model(4, 2), same(4, 2);
  model.to(kOther);
  model.initialise(std::uint64_t{3});
  same.initialise(std::uint64_t{3});
  CHECK(model.parameters().device() == kOther);
  CHECK(values_of(model) == values_of(same));
}

TEST_CASE("a model moves under a reference to its store") {
  TutorialLinear model(4, 2);
  FlatParameters& store = model.parameters();
  const std::vector<float> before = values_of(model);
  model.to(kOther);
  CHECK(&model.parameters() == &store);
  CHECK(store.device() == kOther);
  CHECK(values_of(model) == before);
}

TEST_CASE("a model that an optimizer updates does not move") {
  const auto model = small_net();
  auto opt = std::make_unique<optim::SGD>(*model, optim::SGDOptions{.lr = 0.1f});
  CHECK_NOTHROW(model->to(Device{}));  // it is there
  CHECK_THROWS_AS(model->to(kOther), UsageError);
  CHECK_THROWS_WITH(model->to(kOther), "the values of Sequential cannot move from cpu:0 to cpu:1: held by SGD");
  CHECK(model->parameters().device() == Device{});
  step(*model, *opt);
  opt.reset();
  model->to(kOther);
  CHECK(model->parameters().device() == kOther);
}

TEST_CASE("a model whose replicas run does not move, nor one in DistributedDataParallel") {
  const auto model = small_net();
  {
    dp::DataParallel net(*model, {.devices = first_devices(DeviceKind::cpu, 2)});
    net.to(kOther);  // PyTorch's tutorial moves the wrapper before its first use
    net.to(Device{});
    optim::SGD opt(*model, {.lr = 0.1f});
    step(net, opt);
    CHECK_THROWS_WITH(net.to(kOther), ContainsSubstring("held by SGD, replicas (DataParallel)"));
  }
  model->to(kOther);
  ddp::run_rank_threads(2, [](ddp::ProcessGroup& group) {
    TutorialLinear own(4, 2);
    auto net = std::make_unique<ddp::DistributedDataParallel>(own, group);
    bool refused = false;
    try {
      own.to(kOther);
    } catch (const UsageError& error) {
      refused =
          std::string(error.what()).find("held by hooks on gradients (DistributedDataParallel)") != std::string::npos;
    }
    require(refused, "the model moved");
    net.reset();
    own.to(kOther);
  });
}

TEST_CASE("a loss from before a move does not lose its gradients silently") {
  TutorialLinear model(4, 2);
  const Variable loss = ops::mse_loss(model(zeros({1, 4})), zeros({1, 2}));
  model.to(kOther);
  CHECK_THROWS_WITH(loss.backward(), "the gradients of fc.weight have moved since the forward of this backward");
}

TEST_CASE("a part brings the values along that it had before it was registered") {
  struct Outer : Module {
    explicit Outer(Module& part) {
      register_module("head", head);
      register_module("part", part);
    }
    std::string type_name() const override { return "Outer"; }
    Linear head{3, 2};
  };
  const auto part = small_net();
  part->initialise(std::uint64_t{9});
  part->state_dict()[3].tensor.data<float>()[1] = 0.5f;
  const std::vector<float> own = values_of(*part);
  const std::vector<NamedTensor> before = part->state_dict();
  Outer lazily(*part);
  const std::vector<NamedTensor> state = lazily.state_dict();
  REQUIRE(state.size() == before.size() + 2);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CAPTURE(before[i].name);
    CHECK(state[i + 2].name == "part." + before[i].name);
    CHECK(std::equal(static_cast<const char*>(before[i].tensor.raw()),
                     static_cast<const char*>(before[i].tensor.raw()) + before[i].tensor.bytes(),
                     static_cast<const char*>(state[i + 2].tensor.raw())));
    CHECK(part->state_dict()[i].tensor.same_memory(state[i + 2].tensor));
  }
  lazily.initialise(std::uint64_t{1});
  CHECK(lazily.state_dict()[2].tensor.data<float>()[0] != before[0].tensor.data<float>()[0]);

  Linear other(3, 2);
  other.initialise(std::uint64_t{4});
  Outer drawn(other);
  drawn.initialise(std::uint64_t{2});  // initial values for all of it
  Linear plain(3, 2);
  Outer same(plain);
  same.initialise(std::uint64_t{2});
  CHECK(values_of(drawn) == values_of(same));
}

TEST_CASE("a part whose values are held is not registered") {
  struct Outer : Module {
    explicit Outer(Module& part) { register_module("part", part); }
    std::string type_name() const override { return "Outer"; }
  };
  const auto part = small_net();
  auto opt = std::make_unique<optim::SGD>(*part, optim::SGDOptions{.lr = 0.1f});
  CHECK_THROWS_AS(Outer(*part), UsageError);
  CHECK_THROWS_WITH(Outer(*part), "the values of Sequential cannot become a part of Outer's: held by SGD");
  step(*part, *opt);
  {
    dp::DataParallel net(*part, {.devices = first_devices(DeviceKind::cpu, 2)});
    CHECK_THROWS_WITH(Outer(net), ContainsSubstring("held by SGD"));
    step(net, *opt);
    opt.reset();
    CHECK_THROWS_WITH(Outer(net), ContainsSubstring("held by replicas (DataParallel)"));
  }
  CHECK(Outer(*part).state_dict().size() == part->state_dict().size());
}
