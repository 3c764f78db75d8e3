// Steps in blocks of LibTorch modules: the same bits on 1, 2, 4 and 8 ranks.
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/rank_threads.h"
#include "lib/error.h"
#include "lib/position.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"
#include "tests/torch/networks.h"
#include "torch/ddp.h"

using namespace duet_test;
using duet::ddp::ProcessGroup;
using duet::torch::DistributedDataParallel;

namespace {

struct Blocked {
  std::vector<Tensor> parameters, gradients, buffers;
  double loss = 0;  // of the last step, all ranks' parts
};

/// Rank 0's result after 5 steps of `rows` rows.
template <class Network>
Blocked train(int ranks, std::int64_t rows, at::IntArrayRef shape, int blocks) {
  at::set_num_threads(1);
  Blocked result;
  duet::ddp::run_rank_threads(ranks, [&](ProcessGroup& group) {
    auto model = make_with_values<Network>();
    DistributedDataParallel net(*model, group, {.bucket_limits = {2000}, .blocks = blocks});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
    const std::int64_t begin = duet::share_begin(group.rank(), group.size(), rows, blocks);
    const std::int64_t count = duet::share_begin(group.rank() + 1, group.size(), rows, blocks) - begin;
    double loss = 0;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::int64_t> sizes = shape.vec();
      sizes[0] = rows;
      optimizer.zero_grad();
      loss = net.backward_in_blocks(
          [&](const Tensor& x, const Tensor& y) { return torch::nll_loss(net(x), y, {}, at::Reduction::Sum); },
          wave(sizes, step).narrow(0, begin, count), (torch::arange(rows) * 7 % 10).narrow(0, begin, count));
      optimizer.step();
    }
    group.all_reduce(duet::ddp::Buffer(std::span(&loss, 1))).wait();
    if (group.rank() != 0) return;
    const std::vector<Tensor> parameters = parameters_of(*model);
    result = {copies(parameters), copies(gradients_of(parameters)), {}, loss};
    for (const Tensor& buffer : model->buffers()) result.buffers.push_back(buffer.clone());
  });
  return result;
}

template <class Network>
void same_on_all_numbers_of_ranks(std::int64_t rows, at::IntArrayRef shape, int blocks = 8) {
  const Blocked one = train<Network>(1, rows, shape, blocks);
  for (int ranks = 2; ranks <= 8; ++ranks) {
    INFO(Network::kName << ", " << rows << " rows, " << blocks << " blocks on " << ranks << " ranks");
    const Blocked several = train<Network>(ranks, rows, shape, blocks);
    CHECK(same_bits(several.parameters, one.parameters));
    CHECK(same_bits(several.gradients, one.gradients));
    CHECK(same_bits(several.buffers, one.buffers));
    CHECK(several.loss == duet_test::Approx(one.loss));
  }
}

}  // namespace

TEST_CASE("LibTorch in blocks: 1 to 8 ranks end with the same bits") {
  for (const std::int64_t rows : {24, 21, 5}) same_on_all_numbers_of_ranks<SimpleCnn>(rows, {0, 1, 28, 28});
  same_on_all_numbers_of_ranks<SimpleCnn>(37, {0, 1, 28, 28}, 16);
  same_on_all_numbers_of_ranks<SimpleCnn>(21, {0, 1, 28, 28}, 32);
  same_on_all_numbers_of_ranks<BatchNorm>(19, {0, 2, 6, 6});
}

TEST_CASE("LibTorch in blocks: the gradient is that of the mean over all rows") {
  duet::ddp::SoloGroup group;
  auto model = make_with_values<SimpleCnn>();
  const Tensor x = wave({11, 1, 28, 28}, 1), y = torch::arange(11) % 10;
  torch::nll_loss(model->forward(x), y).backward();
  const std::vector<Tensor> expected = copies(gradients_of(parameters_of(*model)));
  DistributedDataParallel net(model, group, {.blocks = 8});
  const double loss = net.backward_in_blocks(
      [&](const Tensor& own, const Tensor& labels) {
        return torch::nll_loss(net(own), labels, {}, at::Reduction::Sum);
      },
      x, y);
  CHECK(largest_difference(gradients_of(parameters_of(*model)), expected) < 1e-6);
  CHECK(loss == duet_test::Approx(torch::nll_loss(model->forward(x), y).item<double>()));
}

TEST_CASE("LibTorch in blocks: with a seed, dropout draws the same for a block wherever it runs") {
  duet::ddp::SoloGroup group;
  const auto gradients = [&](std::optional<std::uint64_t> seed, std::uint64_t global_seed) {
    torch::manual_seed(global_seed);
    auto model = make_with_values<SimpleCnn>();
    model->drop = 0.5;
    DistributedDataParallel net(model, group, {.blocks = 8, .block_seed = seed});
    for (int step = 0; step < 2; ++step)
      net.backward_in_blocks([&](const Tensor& x) { return net(x).sum(); }, wave({8, 1, 28, 28}, 1));
    return copies(gradients_of(parameters_of(*model)));
  };
  CHECK(same_bits(gradients(7, 1), gradients(7, 2)));
  CHECK(!same_bits(gradients(7, 1), gradients(8, 1)));
  torch::manual_seed(3);
  const Tensor drawn = torch::rand({4});
  torch::manual_seed(3);
  CHECK(torch::equal(drawn, torch::rand({4})));
  // What the program itself draws is as before.
  torch::manual_seed(3);
  auto model = make_with_values<SimpleCnn>();
  DistributedDataParallel net(model, group, {.blocks = 8, .block_seed = 1});
  torch::manual_seed(3);
  net.backward_in_blocks([&](const Tensor& x) { return net(x).sum(); }, wave({8, 1, 28, 28}, 1));
  CHECK(torch::equal(drawn, torch::rand({4})));
  auto other = make_with_values<SimpleCnn>();
  CHECK_THROWS_AS(DistributedDataParallel(other, group, {.blocks = 8, .block_seed = 1}), duet::UsageError);
}

namespace {

/// The loop of docs/howto/libtorch_elastic.md on 45 rows, 2 epochs of 5 steps. From `file` where it is there, up to
/// `stop` steps.
std::vector<Tensor> train_from(const std::string& file, int ranks, std::int64_t stop,
                               std::optional<std::uint64_t> seed) {
  at::set_num_threads(1);
  std::vector<Tensor> left;
  const Tensor images = wave({45, 1, 28, 28}, 1), labels = torch::arange(45) * 7 % 10;
  duet::ddp::run_rank_threads(ranks, [&](ProcessGroup& group) {
    auto model = make_with_values<SimpleCnn>();
    model->drop = seed ? 0.5 : 0;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
    duet::samplers::BlockedBatches batches(
        std::make_unique<duet::samplers::RandomSampler>(45, 1),
        duet::samplers::BlockedOptions{.global_batch = 10, .world_size = group.size(), .rank = group.rank()});
    duet::data::Position position;
    if (std::filesystem::exists(file)) {
      torch::serialize::InputArchive all, of_model, of_optimizer;
      all.load_from(file);
      all.read("model", of_model), model->load(of_model);
      all.read("optimizer", of_optimizer), optimizer.load(of_optimizer);
      c10::IValue epoch, step;
      all.read("epoch", epoch), all.read("step", step);
      position = {epoch.toInt(), step.toInt()};
    }
    const std::int64_t before = position.epoch * batches.steps() + position.step;
    DistributedDataParallel net(*model, group, {.blocks = 8, .block_seed = seed, .steps_before = before});
    const auto loss = [&](const Tensor& x, const Tensor& y) {
      return torch::nll_loss(net(x), y, {}, at::Reduction::Sum);
    };
    while (position.epoch < 2 && position.epoch * batches.steps() + position.step < stop) {
      batches.set_epoch(position.epoch);
      const std::span<const std::int64_t> own = batches.step(position.step).indices;
      const Tensor rows = torch::tensor(at::ArrayRef<std::int64_t>(own.data(), own.size()));
      optimizer.zero_grad();
      net.backward_in_blocks(loss, images.index_select(0, rows), labels.index_select(0, rows));
      optimizer.step();
      if (++position.step == batches.steps()) position = {position.epoch + 1, 0};
    }
    if (group.rank() != 0) return;
    torch::serialize::OutputArchive all, of_model, of_optimizer;
    model->save(of_model), optimizer.save(of_optimizer);
    all.write("model", of_model), all.write("optimizer", of_optimizer);
    all.write("epoch", c10::IValue(position.epoch)), all.write("step", c10::IValue(position.step));
    all.save_to(file);
    left = copies(parameters_of(*model));
  });
  return left;
}

}  // namespace

TEST_CASE("LibTorch in blocks: a training goes on from any step on another number of ranks with the same bits") {
  const duet_test::Scratch scratch;
  const std::vector<Tensor> whole = train_from(scratch.path("whole"), 1, 100, {});
  for (std::uint64_t draw = 1; draw <= 10; ++draw) {
    duet::Mt19937 random(draw);
    const int first = static_cast<int>(1 + random.random() % 8), second = static_cast<int>(1 + random.random() % 8);
    const std::int64_t stop = random.random() % 11;
    INFO("draw " << draw << ": " << first << " -> " << second << " ranks after step " << stop << " of 10");
    const std::string file = scratch.path(std::to_string(draw));
    train_from(file, first, stop, {});
    CHECK(same_bits(train_from(file, second, 100, {}), whole));
  }
}

TEST_CASE("LibTorch in blocks: seeded dropout goes on with the step of the checkpoint") {
  const duet_test::Scratch scratch;
  const std::vector<Tensor> whole = train_from(scratch.path("whole"), 1, 100, 7);
  train_from(scratch.path("part"), 1, 7, 7);
  CHECK(same_bits(train_from(scratch.path("part"), 1, 100, 7), whole));
}

TEST_CASE("LibTorch in blocks: misuse is an error on every rank") {
  const auto step = [](ProcessGroup& group, int blocks, std::int64_t rows, bool in_blocks) {
    at::set_num_threads(1);
    auto model = make_with_values<SimpleCnn>();
    DistributedDataParallel net(model, group, {.blocks = blocks});
    const Tensor x = wave({rows, 1, 28, 28}, 0);
    if (!in_blocks) return net(x).sum().backward();
    net.backward_in_blocks([&](const Tensor& own) { return net(own).sum(); }, x);
  };
  const auto check = [&](int ranks, int blocks, std::int64_t rows, bool in_blocks, const std::string& text) {
    for (const auto& failure :
         try_ranks(Over::memory, ranks, {}, [&](ProcessGroup& group) { step(group, blocks, rows, in_blocks); }))
      CHECK_THAT(text_of(failure), ContainsSubstring(text));
  };
  check(1, 4, 8, true, "blocks is 4, expected 0, 8, 16 or 32");
  check(9, 8, 8, true, "8 blocks cannot be shared out among 9 ranks: use more blocks");
  check(1, 0, 8, true, "needs the option blocks");
  check(1, 8, 8, false, "a step is made by backward_in_blocks()");
  check(4, 8, 3, true, "");  // 12 rows, 3 on each rank
  check(8, 8, 0, true, "the global batch has no rows");
  for (const auto& failure :
       try_ranks(Over::memory, 2, {}, [&](ProcessGroup& group) { step(group, 8, 4 + group.rank() * 3, true); }))
    CHECK_THAT(text_of(failure), ContainsSubstring("rank 0 has 4 of the 11 rows of the global batch, expected its"));
}
