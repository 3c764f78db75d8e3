// DistributedDataParallel for LibTorch modules on simulated devices (tests/torch/simulated_gpu.cpp): what it learns has
// the bits that it has on CPUs, in any order of queued work.
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/autograd/variable.h"
#include "lib/device.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "tests/support/fake_cuda/simulator.h"
#include "tests/torch/networks.h"
#include "tests/torch/simulated_gpu.h"
#include "torch/ddp.h"
#include "torch/dp.h"
#include "torch/module_adapter.h"

using namespace duet_test;
using duet::DeviceKind;
using duet::ddp::ProcessGroup;
using duet::torch::DistributedDataParallel;
using duet_test::Approx;
using Options = duet::torch::DistributedDataParallelOptions;

namespace {

/// Gradients of all dtypes, buffers, and a branch that some do not use.
struct Net : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 7))};
  nn::Linear last{register_module("last", nn::Linear(7, 3))};
  nn::Linear branch{register_module("branch", nn::Linear(7, 3))};
  Tensor wide{register_parameter("wide", torch::ones({3}, torch::kDouble))};
  Tensor brain{register_parameter("brain", torch::ones({3}, torch::kBFloat16))};
  Tensor half{register_parameter("half", torch::ones({3}, torch::kHalf))};
  Tensor forwards{register_buffer("forwards", torch::zeros({}, torch::kLong))};
  Tensor mean{register_buffer("mean", torch::zeros({7}))};
  Tensor forward(const Tensor& x, bool takes_branch = true) {
    const Tensor hidden = torch::relu(torch::dropout(first(x), drop, is_training()) - mean);
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      forwards.add_(1);
      mean.mul_(0.9).add_(hidden.mean(0), 0.1);
    }
    Tensor y = last(hidden) * wide.to(torch::kFloat) + brain.to(torch::kFloat) * half.to(torch::kFloat);
    if (takes_branch) y = y + branch(hidden);
    return y;
  }
  double drop = 0;
};

/// Where the ranks compute, and over what they exchange.
struct Place {
  bool on_gpus = false;
  const char* backend = "auto";
  bool side_stream = false;
  at::Device device(int rank) const {
    return on_gpus ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)) : at::kCPU;
  }
};

struct Rank {
  Net& model;
  DistributedDataParallel<Net>& net;
  torch::optim::SGD& optimizer;
  at::Device device;
  /// A step of plain DDP on some of the rank's rows.
  void step(int number, std::int64_t rows, bool takes_branch = true) const {
    optimizer.zero_grad();
    backward(number, rows, takes_branch);
    optimizer.step();
  }
  void backward(int number, std::int64_t rows, bool takes_branch = true) const {
    const Tensor x = wave({rows, 6}, number + 0.3 * net.group().rank()).to(device);
    net(x, takes_branch).pow(2).mean().backward();
  }
};

void run_ranks(const Place& place, int ranks, const std::function<void(ProcessGroup&)>& body) {
  at::set_num_threads(1);
  duet::ddp::RankThreadsOptions options{.backend = place.backend};
  for (int rank = 0; rank < ranks; ++rank) options.devices.push_back({DeviceKind::cuda, rank});
  duet::ddp::run_rank_threads(ranks, body, options);
}

std::shared_ptr<Net> fixed_net(double phase) {
  auto net = std::make_shared<Net>();
  const torch::NoGradGuard no_grad;
  for (const auto& item : net->named_parameters())
    item.value().copy_(wave(item.value().sizes(), phase + 0.1 * static_cast<double>(item.key().size())));
  return net;
}

void check_same(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i].defined() == expected[i].defined());
    if (found[i].defined()) CHECK(found[i].equal(expected[i]));
  }
}

/// Rank 0's parameters, gradients and buffers after `body`; the first two are the same on all ranks.
std::vector<Tensor> learn(const Place& place, int ranks, const Options& options,
                          const std::function<void(const Rank&)>& body) {
  std::vector<std::vector<Tensor>> parameters(static_cast<std::size_t>(ranks));
  std::vector<Tensor> buffers;
  run_ranks(place, ranks, [&](ProcessGroup& group) {
    const at::Device device = place.device(group.rank());
    std::optional<c10::StreamGuard> stream;
    if (place.side_stream) stream.emplace(new_stream(device));
    const std::shared_ptr<Net> made = fixed_net(group.rank());
    Net& model = *made;
    model.to(device);
    DistributedDataParallel net(model, group, options);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    body({model, net, optimizer, device});
    for (const Tensor& parameter : model.parameters()) {
      std::vector<Tensor>& own = parameters[static_cast<std::size_t>(group.rank())];
      own.push_back(parameter.detach().cpu());
      own.push_back(parameter.grad().defined() ? parameter.grad().cpu() : Tensor());
    }
    if (group.rank() == 0)
      for (const Tensor& buffer : model.buffers()) buffers.push_back(buffer.cpu());
  });
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.defined() ? b.defined() && a.equal(b) : !b.defined();
  };
  for (const auto& own : parameters) CHECK(std::equal(own.begin(), own.end(), parameters[0].begin(), same));
  parameters[0].insert(parameters[0].end(), buffers.begin(), buffers.end());
  return parameters[0];
}

/// What GPUs learn is what CPUs do, bit by bit.
void check_gpus(int ranks, const Options& options, const std::function<void(const Rank&)>& body,
                const std::vector<const char*>& backends = {"auto", "nccl"}) {
  const std::vector<Tensor> expected = learn({}, ranks, options, body);
  for (const char* backend : backends)
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      duet_sim::reset(seed);
      const std::vector<Tensor> found = learn({true, backend, seed == 2}, ranks, options, body);
      CAPTURE(backend, seed);
      check_same(found, expected);
    }
}

}  // namespace

TEST_CASE("LibTorch on simulated GPUs: steps have the bits of those on CPUs") {
  check_gpus(2, {.bucket_limits = {64}}, [](const Rank& rank) {
    for (int i = 0; i < 3; ++i) rank.step(i, 6);
  });
}

TEST_CASE("LibTorch on simulated GPUs: gradients by rows, accumulated under no_sync, parameters compared") {
  check_gpus(2, {.rule = duet::ddp::GradientRule::rows, .compare_parameters_every = 1}, [](const Rank& rank) {
    const std::int64_t rows = rank.net.group().rank() == 0 ? 7 : 3;
    rank.step(0, rows);
    {
      const auto no_sync = rank.net.no_sync();
      rank.optimizer.zero_grad();
      rank.backward(1, rows);
    }
    rank.backward(2, rows);
    rank.optimizer.step();
  });
}

TEST_CASE("LibTorch on simulated GPUs: branches that a rank does not use, and that none uses") {
  check_gpus(2, {.find_unused_parameters = true}, [](const Rank& rank) {
    for (int i = 0; i < 3; ++i) rank.step(i, 6, i < 2 && rank.net.group().rank() == i);
  });
  check_gpus(2, {.bucket_limits = {64}, .static_graph = true}, [](const Rank& rank) {
    for (int i = 0; i < 3; ++i) rank.step(i, 6, rank.net.group().rank() == 1);
  });
}

TEST_CASE("LibTorch on simulated GPUs: ranks that train different numbers of steps") {
  check_gpus(2, {}, [](const Rank& rank) {
    rank.net.join([&] {
      for (int i = 0; i <= 2 * rank.net.group().rank(); ++i) rank.step(i, 6);
    });
  });
}

TEST_CASE("LibTorch on simulated GPUs: steps in blocks, with dropout seeded by block") {
  const auto body = [](const Rank& rank) {
    const std::int64_t rows = 16 / rank.net.group().size();
    if (rows == 16) rank.model.drop = 0.3;
    const auto loss_of = [&](const Tensor& x) { return rank.net(x, true).pow(2).sum(); };
    for (int i = 0; i < 2; ++i) {
      rank.optimizer.zero_grad();
      rank.net.backward_in_blocks(loss_of, wave({rows, 6}, i + rank.net.group().rank()).to(rank.device));
      rank.optimizer.step();
    }
  };
  check_gpus(1, {.blocks = 8, .block_seed = 5}, body, {"auto"});
  check_gpus(2, {.blocks = 8}, body, {"auto"});
}

TEST_CASE("LibTorch on simulated GPUs: DataParallel's replicas learn what they do on CPUs") {
  const auto train = [](DeviceKind kind, bool side_stream) {
    c10::OptionalStreamGuard stream;
    if (side_stream) stream.reset_stream(new_stream(at::Device(at::kCUDA, 0)));
    duet::torch::DataParallel net([] { return fixed_net(0); }, duet::first_devices(kind, 3));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    Tensor x = wave({12, 6}, 1).requires_grad_();
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      net(x).pow(2).mean().backward();
      optimizer.step();
    }
    std::vector<Tensor> all{x.grad()};
    for (const auto& list : {net->parameters(), net->buffers()})
      for (const Tensor& tensor : list) all.push_back(tensor.detach().cpu());
    return all;
  };
  const std::vector<Tensor> expected = train(DeviceKind::cpu, false);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    duet_sim::reset(seed);
    check_same(train(DeviceKind::cuda, seed % 2 == 0), expected);
  }
}

namespace {

/// What a network of duet's may be: Float, with buffers, one of them not Float.
struct PlainNet : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 7))};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(std::vector<std::int64_t>{7}))};
  nn::Linear last{register_module("last", nn::Linear(7, 3))};
  Tensor shift{register_buffer("shift", torch::ones({}))};
  Tensor mean{register_buffer("mean", torch::zeros({7}))};
  Tensor forwards{register_buffer("forwards", torch::zeros({}, torch::kLong))};
  Tensor forward(const Tensor& x) {
    const Tensor hidden = torch::tanh(norm(first(x)) + shift);
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      forwards.add_(1);
      mean.mul_(0.9).add_(hidden.mean(0), 0.1);
    }
    return last(hidden);
  }
};

/// The bytes of all values after three steps of duet's loop.
std::vector<std::vector<float>> learn_in_duet(DeviceKind kind, int devices) {
  const auto model = duet::torch::adapt([] { return std::make_shared<PlainNet>(); }, 3, {.equal_bits = true});
  const std::vector<duet::Device> list = duet::first_devices(kind, devices);
  model->to(list[0]);
  duet::optim::SGD sgd(*model, {.lr = 0.1F, .momentum = 0.9F});
  duet::dp::DataParallel parallel(*model, {.devices = list});
  const duet::Tensor x = duet::zeros({16, 6}), labels = duet::zeros({16}, duet::DType::i64);
  for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = static_cast<float>(i * 37 % 19) / 9 - 1;
  for (std::int64_t i = 0; i < 16; ++i) labels.data<std::int64_t>()[i] = i % 3;
  for (std::int64_t i = 0; i < 3; ++i) {
    sgd.zero_grad();
    const duet::Variable input(x.to(list[0]).set_stamp({.step = i, .first = 0, .global = 16}), true);
    duet::ops::cross_entropy(parallel(input), labels.to(list[0])).backward();
    sgd.step();
  }
  std::vector<std::vector<float>> values;
  for (const duet::NamedTensor& entry : model->state_dict()) {
    const duet::Tensor value = entry.tensor.to(duet::Device{});
    if (value.dtype() == duet::DType::f32)
      values.emplace_back(value.span<float>().begin(), value.span<float>().end());
    else
      values.push_back({static_cast<float>(value.data<std::int64_t>()[0])});
  }
  return values;
}

}  // namespace

TEST_CASE("LibTorch on simulated GPUs: an adapted module learns what it does on CPUs") {
  const auto on_cpus = learn_in_duet(DeviceKind::cpu, 1);
  CHECK(learn_in_duet(DeviceKind::cpu, 2) == on_cpus);
  const auto on_gpu = learn_in_duet(DeviceKind::cuda, 1);
  REQUIRE(on_gpu.size() == on_cpus.size());
  for (std::size_t i = 0; i < on_gpu.size(); ++i)
    for (std::size_t k = 0; k < on_gpu[i].size(); ++k) CHECK(on_gpu[i][k] == Approx(on_cpus[i][k]).margin(1e-6));
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    duet_sim::reset(seed);
    CHECK(learn_in_duet(DeviceKind::cuda, seed == 3 ? 1 : 2) == on_gpu);
  }
}

TEST_CASE("LibTorch on simulated GPUs: misuse is an error") {
  const auto refused = [](int ranks, const Options& options, const char* text,
                          const std::function<void(Net&)>& change) {
    const auto wrap = [&](ProcessGroup& group) {
      Net model;
      model.to(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.rank())));
      change(model);
      DistributedDataParallel net(model, group, options);
      net(wave({2, 6}, 0).to(model.wide.device()), false).sum().backward();  // hooks throw in LibTorch's threads
    };
    CHECK_THROWS_WITH(run_ranks({true, "nccl"}, ranks, wrap), ContainsSubstring(text));
  };
  refused(1, {}, "last.weight is on cpu and wide on cuda:0, expected one device",
          [](Net& model) { model.last->to(at::kCPU); });
  refused(2, {.blocks = 8}, "NCCL adds up in an order of its own", [](Net&) {});
  refused(2, {}, "this rank's device is cuda:", [](Net& model) { model.to(at::Device(at::kCUDA, 2)); });
  refused(2, {}, "branch.weight", [](Net&) {});
  const auto on_gpu = [] {
    const auto model = std::make_shared<Net>();
    model->to(at::kCUDA);
    return model;
  };
  CHECK_THROWS_WITH(duet::torch::DataParallel(on_gpu, {{DeviceKind::cuda, 0, 1}}),
                    "LibTorch has no logical devices such as cuda:0.1");
  CHECK_THROWS_AS(duet::torch::DataParallel(on_gpu, duet::first_devices(DeviceKind::cpu, 2)), duet::DeviceError);
}
