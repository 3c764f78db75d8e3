// Failures of LibTorch modules under duet's DistributedDataParallel.
#include <torch/torch.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/rank_threads.h"
#include "lib/base/environment.h"
#include "lib/error.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/torch/networks.h"
#include "tests/torch/rank_errors.h"
#include "torch/ddp.h"

using namespace duet_test;
using duet::ddp::ProcessGroup;
using duet::torch::DistributedDataParallel;

TEST_CASE("LibTorch: modules that differ, and those that cannot be wrapped, are errors") {
  CHECK_THAT(error_of(2,
                      [](ProcessGroup& group) {
                        nn::Linear model(3, 2 + group.rank());
                        DistributedDataParallel net(model, group);
                      }),
             ContainsSubstring("params[0] is weight [2, 3] Float on rank 0 and weight [3, 3] Float on rank 1"));
  CHECK_THAT(error_of(2,
                      [](ProcessGroup& group) {
                        auto model = nn::Conv2d(4, 4, 2);
                        if (group.rank() == 1) model->weight.set_data(model->weight.to(at::MemoryFormat::ChannelsLast));
                        DistributedDataParallel net(model, group);
                      }),
             ContainsSubstring("strides"));
  CHECK_THAT(error_of(1,
                      [](ProcessGroup& group) {
                        nn::ReLU model;
                        DistributedDataParallel net(model, group);
                      }),
             ContainsSubstring("doesn't have any parameter"));
  CHECK_THAT(error_of(1,
                      [](ProcessGroup& group) {
                        nn::Module model;
                        model.register_parameter("w", torch::empty({2}, torch::Device("meta")));
                        DistributedDataParallel net(model, group);
                      }),
             ContainsSubstring("w is on meta"));
}

TEST_CASE("LibTorch: gradients of a kind that has no sum are errors that name the parameter") {
  CHECK_THAT(error_of(1,
                      [](ProcessGroup& group) {
                        nn::Embedding model(nn::EmbeddingOptions(4, 2).sparse(true));
                        DistributedDataParallel net(model, group);
                        net(torch::tensor({1, 2})).sum().backward();
                      }),
             ContainsSubstring("the gradient of weight is sparse"));
  CHECK_THAT(error_of(1,
                      [](ProcessGroup& group) {
                        nn::Linear model(2, 2);
                        DistributedDataParallel net(model, group);
                        net(torch::ones({1, 2})).pow(2).sum().backward({}, true, true);
                      }),
             ContainsSubstring("the gradient of bias has a graph of its own"));
}

TEST_CASE("LibTorch: after a backward that threw, the next one is whole") {
  duet::ddp::run_rank_threads(2, [](ProcessGroup& group) {
    at::set_num_threads(1);
    auto model = make_with_values<SimpleCnn>();
    DistributedDataParallel net(model, group, {.bucket_limits = {1}});
    SimpleCnn::loss(net, SimpleCnn::batch(0), {group.rank(), 2}).backward();
    const std::vector<Tensor> expected = copies(gradients_of(parameters_of(*model)));
    // All ranks fail at the same place, with buckets under way.
    const auto hook =
        model->conv1->weight.register_hook([](const Tensor&) -> Tensor { throw duet::DataError("planted"); });
    drop_gradients(model->parameters());
    const Tensor loss = SimpleCnn::loss(net, SimpleCnn::batch(0), {group.rank(), 2}),
                 next = SimpleCnn::loss(net, SimpleCnn::batch(0), {group.rank(), 2});
    bool threw = false;
    try {
      loss.backward();
    } catch (const duet::DataError&) {
      threw = true;
    }
    EXPECT_ON_RANK(threw);
    model->conv1->weight.remove_hook(hook);
    drop_gradients(model->parameters());
    next.backward();
    EXPECT_ON_RANK(same_bits(gradients_of(parameters_of(*model)), expected));
  });
}

TEST_CASE("LibTorch: a rank that is killed is named, with its step and collective") {
  const duet::ddp::LaunchResult result =
      duet::ddp::launch({.ranks = 3,
                         .command = {"/proc/self/exe", "LibTorch: one rank of a job"},
                         .environment = {{"DUET_FAULT", "all_reduce:1:12:9"}, {"DUET_TORCH_RANK", "1"}},
                         .on_line = [](int, bool, std::string_view) {}});
  CHECK(result.failed_rank == 1);
  CHECK(result.message == "rank 1 was killed by signal 9 (SIGKILL)");
  INFO(result.report);
  CHECK_THAT(result.report,
             ContainsSubstring("rank 1") && ContainsSubstring("step 2") && ContainsSubstring("backward"));
}

TEST_CASE("LibTorch: one rank of a job", "[.]") {
  if (!duet::environment_variable("DUET_TORCH_RANK")) DUET_SKIP("part of another test");
  at::set_num_threads(1);
  const auto group = duet::ddp::init_process_group();
  auto model = make_with_values<SimpleCnn>();
  DistributedDataParallel net(model, *group, {.bucket_limits = {1}});  // a bucket for each of 8 parameters
  for (int step = 0; step < 1000; ++step)
    SimpleCnn::loss(net, SimpleCnn::batch(step), {group->rank(), group->size()}).backward();
}
