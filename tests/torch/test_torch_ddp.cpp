// What duet's DistributedDataParallel promises, for LibTorch modules.
#include <torch/torch.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ddp/comm_hook.h"
#include "ddp/rank_threads.h"
#include "lib/base/trace.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"
#include "tests/torch/networks.h"
#include "tests/torch/rank_errors.h"
#include "torch/ddp.h"

using namespace duet_test;
using duet::ddp::ProcessGroup;
using duet::torch::DistributedDataParallel;

namespace {

void run_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  at::set_num_threads(1);
  duet::ddp::run_rank_threads(ranks, body);
}

/// y = w x.
struct ScaleImpl : nn::Module {
  explicit ScaleImpl(double value = 1) : w(register_parameter("w", torch::full({1}, value))) {}
  Tensor forward(const Tensor& x) { return w * x; }
  Tensor w;
};
TORCH_MODULE(Scale);

/// Gradients of w are the mean of the rank's rows.
Tensor row(double value, std::int64_t rows = 1) { return torch::full({rows, 1}, value); }

}  // namespace

TEST_CASE("LibTorch: gradients by PyTorch's rule, and by rows") {
  run_ranks(2, [](ProcessGroup& group) {
    const bool first = group.rank() == 0;
    for (const auto rule : {duet::ddp::GradientRule::torch, duet::ddp::GradientRule::rows}) {
      Scale model;
      DistributedDataParallel net(model, group, {.rule = rule});
      net(row(first ? 10 : 40, first ? 3 : 1)).mean().backward();
      EXPECT_ON_RANK(model->w.grad().item<float>() == (rule == duet::ddp::GradientRule::torch ? 25.0f : 17.5f));
    }
  });
}

TEST_CASE("LibTorch: no_sync accumulates, and the next backward reduces it all") {
  for (const auto rule : {duet::ddp::GradientRule::torch, duet::ddp::GradientRule::rows})
    run_ranks(2, [&](ProcessGroup& group) {
      const double own = group.rank() + 1;
      Scale model;
      DistributedDataParallel net(model, group, {.rule = rule});
      for (int step = 0; step < 2; ++step) {
        model->zero_grad();
        for (const bool last : {false, true}) {
          std::optional<decltype(net)::NoSync> no_sync;
          if (!last) no_sync.emplace(net.no_sync());
          net(row(own)).mean().backward();
          EXPECT_ON_RANK(model->w.grad().item<float>() == (last ? 3.0 : own));
        }
      }
    });
}

TEST_CASE("LibTorch: gradients stay in place when they are zeroed, and come back when they are dropped") {
  run_ranks(2, [](ProcessGroup& group) {
    Scale model;
    DistributedDataParallel net(model, group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
    const void* place = nullptr;
    for (const bool to_none : {true, false, true, false}) {
      if (model->w.grad().defined() && to_none) model->w.mutable_grad() = Tensor();
      if (!to_none) model->w.mutable_grad().detach_().zero_();  // as optimizers do
      net(row(group.rank() + 1)).mean().backward();
      if (place == nullptr) place = model->w.grad().data_ptr();
      EXPECT_ON_RANK(model->w.grad().data_ptr() == place);
      EXPECT_ON_RANK(model->w.grad().item<float>() == 1.5f);
    }
  });
}

TEST_CASE("LibTorch: several inputs and outputs, frozen and shared parameters, mixed dtypes, channels_last") {
  struct Mixed : nn::Module {
    Mixed() {
      conv->weight.set_data(conv->weight.to(at::MemoryFormat::ChannelsLast));
      wide->to(torch::kDouble);
      brain->to(torch::kBFloat16);
      tied = register_module("tied", conv.ptr());
      register_parameter("frozen", torch::ones({2}), false);
    }
    std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& x, const Tensor& y) {
      const Tensor z = conv(x).mean({2, 3});
      return {z, {wide(z.to(torch::kDouble)), brain(y.to(torch::kBFloat16)), y.to(torch::kHalf) * half}};
    }
    nn::Conv2d conv{register_module("conv", nn::Conv2d(2, 3, 2))};
    nn::Linear wide{register_module("wide", nn::Linear(3, 2))};
    nn::Linear brain{register_module("brain", nn::Linear(3, 2))};
    Tensor half = register_parameter("half", torch::ones({2, 3}, torch::kHalf));
    std::shared_ptr<nn::Conv2dImpl> tied;
  };
  const auto losses = [](auto& net, int rank) {
    const auto [z, others] = net.forward(wave({2, 2, 4, 4}, rank), wave({2, 3}, rank));
    Tensor sum = z.sum();
    for (const Tensor& other : others) sum = sum + other.to(torch::kFloat).sum();
    return sum;
  };
  std::atomic<int> turn{0};
  run_ranks(2, [&](ProcessGroup& group) {
    while (turn != group.rank()) std::this_thread::yield();  // for the one generator
    torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
    Mixed model;
    ++turn;
    std::vector<Tensor> sums;
    {
      DistributedDataParallel net(model, group);
      losses(net, group.rank()).backward();
      EXPECT_ON_RANK(model.conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
      for (const Tensor& parameter : model.parameters())
        if (parameter.requires_grad())
          EXPECT_ON_RANK(reinterpret_cast<std::uintptr_t>(parameter.grad().data_ptr()) % 64 == 0);
      EXPECT_ON_RANK(duet::torch::tensors_of(model).parameters.size() == 8);
      sums = copies(gradients_of(parameters_of(model)));
    }
    drop_gradients(model.parameters());
    for (int rank = 0; rank < 2; ++rank) (losses(model, rank) / 2).backward();
    const std::vector<Tensor> expected = gradients_of(parameters_of(model));
    for (std::size_t i = 0; i < sums.size(); ++i)
      EXPECT_ON_RANK(torch::allclose(sums[i].to(torch::kFloat), expected[i].to(torch::kFloat), 1e-2, 1e-6));
  });
}

TEST_CASE("LibTorch: a parameter without a gradient is an error that names it, unless that is asked for") {
  const auto backward = [](ProcessGroup& group, bool static_graph, int steps) {
    auto model = make_with_values<UnusedBranches>();
    DistributedDataParallel net(model, group, {.static_graph = static_graph});
    for (int step = 0; step < steps; ++step) net(torch::ones({1, 6}), step / 2).sum().backward();
    EXPECT_ON_RANK(!model->never->weight.grad().defined());
  };
  CHECK_THAT(error_of(1, [&](ProcessGroup& group) { backward(group, false, 1); }),
             ContainsSubstring("without a gradient for never.bias, never.weight, b.bias, b.weight"));
  run_ranks(2, [&](ProcessGroup& group) { backward(group, true, 2); });
  CHECK_THAT(error_of(1, [&](ProcessGroup& group) { backward(group, true, 3); }),
             ContainsSubstring("static_graph: the graph has changed: the gradient of b."));
}

TEST_CASE("LibTorch: options that make no sense are errors that name their value") {
  const auto error_with = [](const duet::torch::DistributedDataParallelOptions& options) {
    return error_of(1, [&](ProcessGroup& group) {
      auto model = make_with_values<UnusedBranches>();
      DistributedDataParallel net(model, group, options);
    });
  };
  CHECK_THAT(error_with({.bucket_limits = {0}}),
             ContainsSubstring("a limit in bucket_limits is 0, expected 1 or more"));
  CHECK_THAT(error_with({.compare_parameters_every = -3}),
             ContainsSubstring("compare_parameters_every is -3, expected 0 or more"));
}

TEST_CASE("LibTorch: with unused parameters, gradients that accumulate are those of all ranks") {
  run_ranks(2, [](ProcessGroup& group) {
    auto model = make_with_values<UnusedBranches>();
    DistributedDataParallel net(model, group, {.find_unused_parameters = true});
    // Only in the second run, and only on rank 0, branch b is used; branch a keeps what it has.
    net(torch::ones({1, 6}), 0).sum().backward();
    const Tensor before = model->a->weight.grad().clone();
    net(torch::ones({1, 6}), group.rank() == 0 ? 1 : 0).sum().backward();
    EXPECT_ON_RANK(model->b->bias.grad().eq(0.5).all().item<bool>());
    EXPECT_ON_RANK(torch::allclose(model->a->weight.grad(), 1.5 * before));
    EXPECT_ON_RANK(!model->never->bias.grad().defined());
  });
}

TEST_CASE("LibTorch: ranks with fewer steps join those that go on") {
  for (const auto rule : {duet::ddp::GradientRule::torch, duet::ddp::GradientRule::rows})
    run_ranks(2, [&](ProcessGroup& group) {
      Scale model(1);
      DistributedDataParallel net(model, group, {.rule = rule});
      net.join([&] {
        for (int step = 0; step <= group.rank(); ++step) {
          model->zero_grad();
          net(row(1)).mean().backward();
          const torch::NoGradGuard no_grad;
          model->w -= model->w.grad();
        }
      });
      // The second step is rank 1's alone, whose gradient counts as half of two, or as all there is.
      EXPECT_ON_RANK(model->w.item<float>() == (rule == duet::ddp::GradientRule::torch ? -0.5f : -1.0f));
    });
}

TEST_CASE("LibTorch: buffers are rank 0's before each forward, and after the wrapper was made") {
  run_ranks(2, [](ProcessGroup& group) {
    auto model = make_with_values<BatchNorm>();
    model->bn->running_mean.fill_(group.rank());
    DistributedDataParallel net(model, group);
    EXPECT_ON_RANK(model->bn->running_mean.eq(0).all().item<bool>());
    model->bn->running_mean.fill_(group.rank() + 5);
    const Tensor x = wave({4, 2, 6, 6}, group.rank());
    net(x);
    const Tensor own_mean = model->conv(x).mean({0, 2, 3});
    EXPECT_ON_RANK(torch::allclose(model->bn->running_mean, 0.9 * 5 + 0.1 * own_mean));
    model->eval();
    const Tensor before = model->bn->running_mean.clone();
    net(x);  // of this rank alone
    EXPECT_ON_RANK(torch::equal(model->bn->running_mean, before));
  });
}

TEST_CASE("LibTorch: a communication hook sums the buckets") {
  run_ranks(2, [](ProcessGroup& group) {
    Scale model;
    DistributedDataParallel net(
        model, group, {.comm_hook = std::make_shared<duet::ddp::CompressionHook>(duet::ddp::HalfFormat::bf16)});
    net(row(group.rank() == 0 ? 1 : 1.001)).mean().backward();  // 1.001 is 1 in bf16
    EXPECT_ON_RANK(model->w.grad().item<float>() == 1.0f);
  });
}

TEST_CASE("LibTorch: parameters that differ are found, and the first is named") {
  const std::string text = error_of(3, [](ProcessGroup& group) {
    auto model = make_with_values<SimpleCnn>();
    DistributedDataParallel net(model, group, {.compare_parameters_every = 2});
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && group.rank() == 2) model->fc1->bias.data()[3] += 1e-6;
      SimpleCnn::loss(net, SimpleCnn::batch(step), {0, 1}).backward();
    }
  });
  CHECK_THAT(text, ContainsSubstring("parameters differ from those of rank 0 in step 4, on rank 2") &&
                       ContainsSubstring("the first is fc1.bias"));
}

TEST_CASE("LibTorch: the trace has what backward waits for its buckets, and hooks go with the wrapper") {
  duet::ddp::SoloGroup group;
  Scale model;
  {
    DistributedDataParallel net(model, group);
    const std::uint64_t begin = duet::Trace::position();
    for (int step = 0; step < 2; ++step) net(row(1)).sum().backward();
    std::vector<duet::TraceEvent> events;
    duet::Trace::read(begin, events);
    CHECK(events.size() == 2);
    for (const duet::TraceEvent& event : events) CHECK(event.name == std::string("communication"));
  }
  model->forward(row(1)).sum().backward();
  CHECK(model->w.grad().item<float>() == 3.0f);
}

TEST_CASE("LibTorch: gradients are summed after a checkpoint was loaded into a wrapped module") {
  const Scratch scratch;
  Scale saved(5);
  torch::save(saved, scratch.path("model.pt"));
  const bool at_once = GENERATE(true, false);
  run_ranks(2, [&](ProcessGroup& group) {
    const double own = group.rank() == 0 ? 10 : 40;
    Scale model;
    DistributedDataParallel net(model, group, {.compare_parameters_every = 1});
    if (!at_once) net(row(own)).sum().backward();
    torch::load(model, scratch.path("model.pt"));
    model->zero_grad();
    net(row(own)).sum().backward();
    EXPECT_ON_RANK(model->w.item<float>() == 5.0f);
    EXPECT_ON_RANK(model->w.grad().item<float>() == 25.0f);
    model->to(torch::kDouble);
    model->to(torch::kFloat);
    net(row(own)).sum().backward();
    EXPECT_ON_RANK(model->w.grad().item<float>() == 50.0f);
    // Without a forward in training, as with frozen batch norm.
    model->eval();
    torch::load(model, scratch.path("model.pt"));
    model->zero_grad();
    net(row(own)).sum().backward();
    EXPECT_ON_RANK(model->w.grad().item<float>() == 25.0f);
  });
}

TEST_CASE("LibTorch: a parameter that is unfrozen after the module was wrapped is an error") {
  const std::string text = error_of(2, [](ProcessGroup& group) {
    nn::Sequential model(nn::Linear(1, 1), nn::Linear(1, 1));
    const Tensor frozen = model->named_parameters()["0.weight"].set_requires_grad(false);
    DistributedDataParallel net(model, group);
    net(row(1)).sum().backward();
    Tensor(frozen).set_requires_grad(true);
    net(row(1)).sum().backward();
  });
  CHECK_THAT(text, ContainsSubstring("0.weight requires a gradient, but did not when the module was wrapped"));
}

TEST_CASE("LibTorch: a module that is converted after it was wrapped is an error") {
  const std::string text = error_of(2, [](ProcessGroup& group) {
    Scale model;
    DistributedDataParallel net(model, group);
    model->to(torch::kDouble);
    net(row(1).to(torch::kDouble)).sum().backward();
  });
  CHECK_THAT(text, ContainsSubstring("w is [1] Double on cpu, expected [1] Float on cpu: the module was converted"));
}

TEST_CASE("LibTorch: backward of an output by rows whose wrapper was destroyed is an error") {
  const std::string text = error_of(2, [](ProcessGroup& group) {
    Scale model;
    Tensor output;
    {
      DistributedDataParallel net(model, group, {.rule = duet::ddp::GradientRule::rows});
      output = net(row(1));
    }
    output.sum().backward();
  });
  CHECK_THAT(text, ContainsSubstring("backward runs through a DistributedDataParallel that was destroyed"));
}

TEST_CASE("LibTorch: a module that is wrapped already is an error") {
  duet::ddp::SoloGroup group;
  Scale model;
  {
    const DistributedDataParallel net(model, group);
    CHECK_THROWS_WITH(DistributedDataParallel(model, group),
                      "w is wrapped already: only one DistributedDataParallel at a time can sum its gradients");
  }
  DistributedDataParallel net(model, group);
  net(row(1)).sum().backward();
  CHECK(model->w.grad().item<float>() == 1.0f);
}
