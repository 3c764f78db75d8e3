// Trainings end with the same bits alone and on any number of devices.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/comm_hook.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "ddp/transport/modules.h"
#include "dp/data_parallel.h"
#include "lib/blocks.h"
#include "lib/data/loader.h"
#include "lib/device.h"
#include "lib/nn/layers.h"
#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "tests/any_number/draw.h"
#include "tests/support/catch2.h"
#include "tests/support/number_of.h"

using namespace duet;
using namespace duet_test;

namespace {

std::vector<std::string> backends() {
  std::vector<std::string> all = {"memory", "shm", "tcp"};
  if (duet::ddp::why_no_gloo().empty()) all.push_back("gloo");
  return all;
}

void check(const Draw& draw) {
  INFO("DUET_DRAW=" << draw.seed << " test_any_number: " << draw);
  Draw single = draw;
  single.mode = "dp";
  single.devices = single.per_rank = 1;
  const std::vector<float> expected = train(single)[0];
  for (const std::vector<float>& numbers : train(draw)) {
    REQUIRE(numbers.size() == expected.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      different += std::memcmp(&numbers[i], &expected[i], sizeof(float)) != 0;
    CHECK(different == 0);
  }
}

}  // namespace

namespace {

constexpr std::int64_t kRows = 22;

/// Its batch norm has statistics of one device's rows.
class Network : public nn::Module {
 public:
  Network() {
    register_module("conv", conv_);
    register_module("norm", norm_);
    register_module("fc", fc_);
    initialise(3);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return fc_.forward(context, flatten_.forward(context, norm_.forward(context, conv_.forward(context, x))));
  }
  using nn::Module::forward;

 private:
  nn::Conv2d conv_{1, 2, 3};
  nn::BatchNorm2d norm_{2};
  nn::Flatten flatten_;
  nn::Linear fc_{8, 3};
};

/// A rank's rows of a batch, as BlockedBatches gives them.
data::Batch batch_of(int rank, int ranks, std::uint64_t step) {
  data::Batch all{empty({kRows, 1, 4, 4}), empty({kRows}, DType::i64)};
  Mt19937(step).randn(all.images.span<float>());
  for (std::int64_t row = 0; row < kRows; ++row) all.labels.data<std::int64_t>()[row] = row % 3;
  const std::int64_t begin = share_begin(rank, ranks, kRows, 8), end = share_begin(rank + 1, ranks, kRows, 8);
  data::Batch own{all.images.rows(begin, end), all.labels.rows(begin, end)};
  const Rows stamp{
      .step = static_cast<std::int64_t>(step), .first = begin, .global = kRows, .shards = ranks, .owned = true};
  own.images.set_stamp(stamp);
  own.labels.set_stamp(stamp);
  return own;
}

/// One update from the gradients of as many batches.
std::vector<float> update(nn::Module& model, nn::Module& net, int rank, int ranks, std::uint64_t batches,
                          const std::function<std::shared_ptr<const void>()>& no_sync = {}) {
  optim::SGD optimizer(model, {.lr = 0.1f});
  optimizer.zero_grad();
  for (std::uint64_t step = 0; step < batches; ++step) {
    const auto guard = no_sync && step + 1 < batches ? no_sync() : nullptr;
    const data::Batch batch = batch_of(rank, ranks, step);
    ops::cross_entropy(net(batch.images), batch.labels).backward();
  }
  optimizer.step();
  const auto values = model.parameters().values().span<float>();
  return {values.begin(), values.end()};
}

std::vector<float> by_replicas(std::uint64_t batches) {
  Network model;
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 3)});
  return update(model, net, 0, 1, batches);
}

/// Of each of three ranks.
std::vector<std::vector<float>> by_ranks(std::uint64_t batches, const std::shared_ptr<ddp::CommHook>& hook = nullptr) {
  std::vector<std::vector<float>> values(3);
  const auto train = [&](ddp::ProcessGroup& group) {
    Network model;
    ddp::DistributedDataParallel net(model, group, {.comm_hook = hook});
    const auto no_sync = [&] { return std::make_shared<ddp::DistributedDataParallel::NoSync>(net.no_sync()); };
    values[static_cast<std::size_t>(group.rank())] = update(model, net, group.rank(), group.size(), batches, no_sync);
  };
  ddp::run_rank_threads(3, train, {.backend = "shm"});
  CHECK(values[1] == values[0]);
  CHECK(values[2] == values[0]);
  return values;
}

float largest_difference(const std::vector<float>& one, const std::vector<float>& other) {
  REQUIRE(one.size() == other.size());
  float largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) largest = std::max(largest, std::abs(one[i] - other[i]));
  return largest;
}

/// Sums in half the memory; one for each rank, as it keeps buffers.
class Halves final : public ddp::CommHook {
 public:
  ddp::Work start(ddp::ProcessGroup& group, const ddp::GradBucket& bucket) override {
    return hooks_[static_cast<std::size_t>(group.rank())].start(group, bucket);
  }
  void finish(ddp::ProcessGroup& group, const ddp::GradBucket& bucket) override {
    hooks_[static_cast<std::size_t>(group.rank())].finish(group, bucket);
  }

 private:
  std::vector<ddp::CompressionHook> hooks_{3, ddp::CompressionHook(ddp::HalfFormat::bf16)};
};

}  // namespace

TEST_CASE("batch norms of one device's rows learn the same under DP and DDP on three devices") {
  CHECK(by_ranks(1)[0] == by_replicas(1));
}

TEST_CASE("gradients that accumulate on three ranks are those of all rows, to rounding") {
  CHECK(largest_difference(by_ranks(3)[0], by_replicas(3)) < 1e-6f);
}

TEST_CASE("a communication hook on three ranks gets the sum of a rank's parts") {
  CHECK(largest_difference(by_ranks(1, std::make_shared<Halves>())[0], by_replicas(1)) < 1e-3f);
}

namespace {

/// Its sums are those of rows only.
class Rowwise : public nn::Module {
 public:
  Rowwise() {
    register_module("fc", fc_);
    initialise(3);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return fc_.forward(context, flatten_.forward(context, x));
  }
  using nn::Module::forward;

 private:
  nn::Flatten flatten_;
  nn::Linear fc_{16, 3};
};

std::vector<float> gradients_of(nn::Module& model) {
  const auto all = model.parameters().gradients().span<float>();
  return {all.begin(), all.end()};
}

data::Batch with_blocks(const data::Batch& whole, int blocks, int rank, int ranks) {
  const std::int64_t begin = share_begin(rank, ranks, kRows, blocks), end = share_begin(rank + 1, ranks, kRows, blocks);
  data::Batch batch{whole.images.rows(begin, end), whole.labels.rows(begin, end)};
  const Rows stamp{.first = begin, .global = kRows, .shards = ranks, .blocks = blocks, .owned = true};
  batch.images.set_stamp(stamp);
  batch.labels.set_stamp(stamp);
  return batch;
}

}  // namespace

TEST_CASE("halves of a batch, and gradients that no rank has sent, are those of the rows that they have") {
  for (const int blocks : {8, 16, 32})
    for (const int ranks : {3, 5, 6, 7}) {
      const data::Batch whole = with_blocks(batch_of(0, 1, 0), blocks, 0, 1);
      Rowwise alone;
      ops::cross_entropy(alone(whole.images), whole.labels).backward();
      const std::vector<float> expected = gradients_of(alone);
      INFO(ranks << " ranks, " << blocks << " blocks");
      const auto body = [&](ddp::ProcessGroup& group) {
        Rowwise model;
        ddp::DistributedDataParallel net(model, group);
        const data::Batch own = with_blocks(whole, blocks, group.rank(), ranks);
        const std::int64_t rows = own.images.size(0);
        const auto run = [&](std::int64_t begin, std::int64_t end) {
          ops::cross_entropy(net(own.images.rows(begin, end)), own.labels.rows(begin, end)).backward();
        };
        model.zero_grad();
        {
          const auto guard = net.no_sync();
          run(0, rows / 2);
        }
        const std::vector<float> half = gradients_of(model);
        Rowwise by_hand;
        data::Batch plain = own;  // as one of a sampler that divides nothing
        const Rows stamp{.first = own.images.stamp().first, .global = kRows};
        plain.images.set_stamp(stamp);
        plain.labels.set_stamp(stamp);
        ops::cross_entropy(by_hand(plain.images.rows(0, rows / 2)), plain.labels.rows(0, rows / 2)).backward();
        const bool same = rows < 2 || largest_difference(half, gradients_of(by_hand)) < 1e-6f;
        run(rows / 2, rows);
        const float sum = largest_difference(gradients_of(model), expected);
        model.zero_grad();  // forward synchronised, backward not
        Variable loss = ops::cross_entropy(net(own.images), own.labels);
        std::vector<float> unsent;
        {
          const auto guard = net.no_sync();
          loss.backward();
          unsent = gradients_of(model);
        }
        by_hand.zero_grad();
        ops::cross_entropy(by_hand(plain.images), plain.labels).backward();
        const float own_sum = rows == 0 ? 0 : largest_difference(unsent, gradients_of(by_hand));
        model.zero_grad();
        run(0, rows);
        const bool bits = gradients_of(model) == expected;
        CHECK(same);
        CHECK(sum < 1e-6f);
        CHECK(own_sum < 1e-6f);
        CHECK(bits);
      };
      ddp::run_rank_threads(ranks, body, {.backend = "memory"});
    }
}

TEST_CASE("ranks that end before others, even before their first step, leave sums of the others' rows") {
  const auto body = [](ddp::ProcessGroup& group) {
    Rowwise model;
    ddp::DistributedDataParallel net(model, group);
    optim::SGD optimizer(model, {.lr = 0.1f});
    net.join([&] {
      for (std::uint64_t step = 0; step < static_cast<std::uint64_t>(group.rank()); ++step) {
        optimizer.zero_grad();
        const data::Batch batch = batch_of(group.rank(), 3, step);
        ops::cross_entropy(net(batch.images), batch.labels).backward();
        optimizer.step();
      }
    });
    std::vector<float> values(gradients_of(model).size());
    std::ranges::copy(model.parameters().values().span<float>(), values.begin());
    std::vector<float> all(3 * values.size());
    group.all_gather(std::span(values), std::span(all)).wait();
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == values[i % values.size()]);
  };
  for (const char* const backend : {"memory", "shm"}) ddp::run_rank_threads(3, body, {.backend = backend});
}

TEST_CASE("a DataParallel around a part of a network runs in ranks that own several subtrees") {
  class Parts : public nn::Module {
   public:
    Parts() {
      register_module("first", first_);
      register_module("second", second_);
    }
    Variable forward(nn::Context& context, const Variable& x) const override {
      const nn::Module& first = wrapper_ != nullptr ? *wrapper_ : static_cast<const nn::Module&>(first_);
      return second_.forward(context, first.forward(context, flatten_.forward(context, x)));
    }
    using nn::Module::forward;
    nn::Linear first_{16, 6}, second_{6, 3};
    nn::Flatten flatten_;
    void wrap_first(nn::Module& wrapper) {
      wrap_child("first", wrapper);
      wrapper_ = &wrapper;
    }

   private:
    nn::Module* wrapper_ = nullptr;
  };
  const data::Batch whole = batch_of(0, 1, 0);
  Parts alone;
  alone.initialise(3);
  ops::cross_entropy(alone(whole.images), whole.labels).backward();
  const std::vector<float> expected = gradients_of(alone);
  const auto body = [&](ddp::ProcessGroup& group) {
    Parts model;
    dp::DataParallel inner(model.first_, {.devices = first_devices(DeviceKind::cpu, 2)});
    model.wrap_first(inner);
    model.initialise(3);
    ddp::DistributedDataParallel net(model, group);
    const data::Batch own = batch_of(group.rank(), 3, 0);
    ops::cross_entropy(net(own.images), own.labels).backward();
    CHECK(largest_difference(gradients_of(model), expected) < 1e-6f);
  };
  ddp::run_rank_threads(3, body, {.backend = "memory"});
}

/// DUET_DRAW=SEED trains that draw only; DUET_DRAWS=N draws as many, from seed DUET_DRAW_FROM on.
TEST_CASE("drawn trainings on up to 32 devices end with one device's bits") {
  if (std::getenv("DUET_DRAW") != nullptr) return check(draw_of(number_of("DUET_DRAW", 0), backends()));
  const std::uint64_t draws = number_of("DUET_DRAWS", 100), first = number_of("DUET_DRAW_FROM", 1);
  std::cout << "draws " << first << " to " << first + draws - 1 << "\n";
  for (std::uint64_t seed = first; seed < first + draws; ++seed) check(draw_of(seed, backends()));
}

TEST_CASE("every number of devices up to that of the blocks ends with one device's bits") {
  for (const int blocks : {8, 16, 32})
    for (int devices = 2; devices <= blocks; ++devices)
      for (const char* const mode : {"dp", "ddp"}) {
        const auto seed = static_cast<std::uint64_t>(100 * blocks + devices);
        Draw draw = draw_of(seed, {"memory"});
        draw.network = devices % 3 == 0 ? "random" : "linear";
        draw.mode = mode;
        draw.devices = devices;
        draw.per_rank = draw.mode == "dp" ? devices : 1;
        draw.blocks = blocks;
        draw.batch = 1 + static_cast<std::int64_t>(seed) * 7 % 70;  // also fewer rows than blocks
        draw.rows = 2 * draw.batch;
        check(draw);
      }
}

namespace {

/// Gives its loss, or a sum over its rows if `loss` is false.
class LossInside : public nn::Module {
 public:
  explicit LossInside(bool loss) : loss_(loss) { register_module("fc", fc_); }
  nn::Value forward(nn::Context& context, const nn::Value& input) const override {
    const Variable y = fc_.forward(context, flatten_.forward(context, input.list()[0].variable()));
    const Tensor& labels = input.list()[1].variable().value();
    return loss_ ? ops::cross_entropy(y, labels) : ops::sum(y * y);
  }
  Variable forward(nn::Context&, const Variable&) const override { throw UsageError("takes a list"); }
  using nn::Module::forward;

 private:
  bool loss_;
  nn::Flatten flatten_;
  nn::Linear fc_{16, 3};
};

}  // namespace

TEST_CASE("a loss in the module is that of a device's rows, and other numbers of several pieces are an error") {
  const auto gradient_of = [](nn::Module& model, nn::Module& net, int rank, int ranks) {
    const data::Batch batch = batch_of(rank, ranks, 0);
    const nn::Value loss = net(nn::Value(nn::List{Variable(batch.images), Variable(batch.labels)}));
    loss.variable().backward();
    const auto gradients = model.parameters().gradients().span<float>();
    return std::vector<float>(gradients.begin(), gradients.end());
  };
  LossInside single(true);
  single.initialise(3);
  const std::vector<float> expected = gradient_of(single, single, 0, 1);
  const auto rank = [&](bool loss) {
    return [&, loss](ddp::ProcessGroup& group) {
      LossInside model(loss);
      model.initialise(3);
      ddp::DistributedDataParallel net(model, group);
      const std::vector<float> gradient = gradient_of(model, net, group.rank(), group.size());  // throws
      CHECK(gradient == expected);
    };
  };
  ddp::run_rank_threads(3, rank(true), {.backend = "memory"});
  CHECK_THROWS_WITH(ddp::run_rank_threads(3, rank(false), {.backend = "memory"}),
                    ContainsSubstring("gives one number for each run of a device that owns several subtrees"));
}
