// Penalties on parameters beside the loss of a batch: they count once, with the bits of one device.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "dp/data_parallel.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kPenaltyRows = 20;

struct PenaltyNet : nn::Sequential {
  explicit PenaltyNet(std::uint64_t seed) {
    add<nn::Flatten>();
    add<nn::Linear>(784, 6);
    add<nn::ReLU>();
    add<nn::Linear>(6, 10);
    add<nn::LogSoftmax>();
    initialise(seed);
  }
};

Variable parameter(nn::Module& model, int slot) { return model.context().parameter(slot); }
Variable squares(const Variable& w) { return ops::sum(w * w); }
Tensor ramp(const Variable& w, float step) {
  const Tensor values = empty(w.shape());
  for (std::int64_t i = 0; i < values.count(); ++i) values.data<float>()[i] = step * static_cast<float>(i);
  return values.to(w.device());
}

using Penalty = std::function<Variable(nn::Module& model)>;

Variable decay(nn::Module& model) {
  return 0.1 * (squares(parameter(model, 0)) + squares(parameter(model, 1)) + squares(parameter(model, 3)));
}

const std::vector<Penalty>& penalties() {
  static const std::vector<Penalty> all = {
      decay,
      [](nn::Module& m) { return squares(ops::matmul(parameter(m, 2), parameter(m, 0))) / 30; },
      [](nn::Module& m) { return ops::sqrt(squares(parameter(m, 2))) + ops::mean(parameter(m, 2)); },
      [](nn::Module& m) { return 3 * ops::l1_loss(parameter(m, 3), ramp(parameter(m, 3), .01f)); },
      [](nn::Module& m) {
        const Variable w = parameter(m, 2), moved = w - ramp(w, .001f);
        return ops::sum(ramp(w, .1f) * moved * moved);
      },
      [](nn::Module& m) {
        const Variable once = squares(parameter(m, 2));
        return once + ops::relu(once - 1) - 0.5 * once;
      }};
  return all;
}

/// All gradients and values after three steps, in which the penalty is computed before the loss or after it.
std::string trained(nn::Module& model, nn::Module& net, const Penalty& penalty, bool first, int rank, int ranks) {
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = owned_batch(kPenaltyRows, step, rank, ranks).to(model.parameters().device());
    opt.zero_grad();
    const Variable before = first ? penalty(model) : Variable();
    const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
    (loss + (first ? before : penalty(model))).backward();
    opt.step();
  }
  return state_of(model);
}

}  // namespace

TEST_CASE("a penalty on parameters counts once, with the bits of one device, under DDP and DP") {
  for (std::size_t i = 0; i < penalties().size(); ++i)
    for (const bool first : {false, true}) {
      const Penalty& penalty = penalties()[i];
      PenaltyNet single(kSeed);
      const std::string expected = trained(single, single, penalty, first, 0, 1);
      for (const int count : {2, 3, 4, 8}) {
        CAPTURE(i, first, count);
        run_ranks(Over::shm, count, [&](ProcessGroup& group) {
          PenaltyNet model(kSeed);
          model.to({DeviceKind::cpu, group.rank()});
          DistributedDataParallel net(model, group, {.bucket_limits = {64}});
          CHECK(trained(model, net, penalty, first, group.rank(), count) == expected);
        });
        PenaltyNet model(kSeed);
        dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, count)});
        CHECK(trained(model, net, penalty, first, 0, 1) == expected);
      }
    }
}

TEST_CASE("the penalty of each backward counts once, under no_sync() and in a backward of its own") {
  enum class Where { in_loss, before, after };
  for (const bool stamped : {true, false})
    for (const Where where : {Where::in_loss, Where::before, Where::after})
      for (const bool no_sync : {true, false}) {
        const auto accumulate = [=](nn::Module& model, nn::Module& net, DistributedDataParallel* wrapper,
                                    const RankRows& rows, int rank) {
          for (const std::int64_t step : {0, 1, 2}) {
            DistributedDataParallel::NoSync guard;
            if (wrapper != nullptr && no_sync && step < 2) guard = wrapper->no_sync();
            const Penalty& penalty = penalties()[static_cast<std::size_t>(step)];
            const Batch batch = rows_of(rows, rank, step, stamped).to(model.parameters().device());
            if (where == Where::before) penalty(model).backward();
            const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
            (where == Where::in_loss ? loss + penalty(model) : loss).backward();
            if (where == Where::after) penalty(model).backward();
          }
        };
        PenaltyNet single(kSeed);
        accumulate(single, single, nullptr, {8}, 0);
        CAPTURE(stamped, where, no_sync);
        check_all_close(of_ranks<PenaltyNet>(2,
                                             [&](DistributedDataParallel& net, int rank, Device) {
                                               accumulate(net.module(), net, &net, {5, 3}, rank);
                                             }),
                        gradients_of(single));
      }
}

namespace {

/// Keeps a value that the batch and a penalty use, and has a number for the loss.
struct KeepsScaled : nn::Module {
  explicit KeepsScaled(std::uint64_t seed) {
    const auto fill = [](std::span<float> values, Mt19937& generator) { generator.uniform(values, 0.1, 0.5); };
    for (const auto& [name, shape] : {std::pair{"w", Shape{784, 10}}, {"g", Shape{10}}, {"s", Shape{}}})
      register_parameter(name, shape, fill);
    initialise(seed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    scaled = context.parameter(0) * context.parameter(1);
    return ops::matmul(ops::flatten(x), scaled);
  }
  using nn::Module::forward;
  mutable Variable scaled;
};

}  // namespace

TEST_CASE("penalties of a value that the batch uses, too, and of numbers in the loss count once, without a warning") {
  using ScaledLoss = std::function<Variable(KeepsScaled & model, const Variable& loss)>;
  const ScaledLoss losses[] = {
      [](KeepsScaled& m, const Variable& loss) { return loss + 0.1 * squares(m.scaled); },
      [](KeepsScaled& m, const Variable& loss) { return loss - parameter(m, 2); },
      [](KeepsScaled& m, const Variable& loss) { return loss - parameter(m, 2) + squares(parameter(m, 1)); },
      [](KeepsScaled& m, const Variable& loss) { return ops::exp(-parameter(m, 2)) * loss + parameter(m, 2); }};
  const Said said;
  for (std::size_t i = 0; i < std::size(losses); ++i)
    for (const bool stamped : {true, false}) {
      if (stamped && i == 3) continue;  // refused: the slope is another one on each rank
      CAPTURE(i, stamped);
      const auto step = [&](KeepsScaled& model, nn::Module& net, const Batch& batch) {
        losses[i](model, ops::cross_entropy(net(batch.images), batch.labels)).backward();
      };
      KeepsScaled single(kSeed);
      step(single, single, rows_of({8}, 0, 0, stamped));
      const auto of_rank = [&](DistributedDataParallel& net, int rank, Device device) {
        step(dynamic_cast<KeepsScaled&>(net.module()), net, rows_of({5, 3}, rank, 0, stamped).to(device));
      };
      check_all_close(of_ranks<KeepsScaled>(2, of_rank, {.find_unused_parameters = true}), gradients_of(single));
    }
  CHECK(said.lines() == 0);
}

TEST_CASE("a penalty on rows of a table that each rank chooses is none") {
  struct Table : nn::Embedding {
    explicit Table(std::uint64_t seed) : nn::Embedding(10, 784) { initialise(seed); }
    Variable forward(nn::Context& context, const Variable& x) const override {
      return ops::matmul(ops::flatten(x), ops::transpose(context.parameter(0), 0, 1));
    }
    using nn::Embedding::forward;
  };
  const std::string failure = failure_of<Table>(2, [](DistributedDataParallel& net, int rank, Device device) {
    const Batch batch = rows_of({5, 3}, rank, 0, true).to(device);
    const Tensor chosen = from_values<std::int64_t>({2}, {rank, 7}).to(device);
    const Variable loss = ops::cross_entropy(net(batch.images), batch.labels);
    (loss + squares(ops::embedding(parameter(net.module(), 0), chosen))).backward();
  });
  CHECK_THAT(failure, ContainsSubstring("one part of the loss was divided by the rows of the global batch"));
}

TEST_CASE("a module's own penalty counts once where one tape has a rank's rows, else it is refused") {
  struct Penalised : nn::Linear {
    Penalised() : nn::Linear(784, 10) { initialise(kSeed); }
    nn::Value forward(nn::Context& context, const nn::Value& input) const override {
      const Variable y = nn::Linear::forward(context, ops::flatten(input.list()[0].variable()));
      return ops::cross_entropy(y, input.list()[1].variable().value()) + squares(weight(context));
    }
    using nn::Linear::forward;
  };
  const auto step = [](nn::Module& net, const Batch& batch) {
    ops::mean(net(nn::Value(nn::List{Variable(batch.images), Variable(batch.labels)})).variable()).backward();
  };
  Penalised single;
  step(single, owned_batch(kPenaltyRows, 0, 0, 1));
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    Penalised model;
    model.to(device);
    DistributedDataParallel net(model, group);
    step(net, owned_batch(kPenaltyRows, 0, group.rank(), 2).to(device));
    CHECK(gradients_of(model) == gradients_of(single));
  });
  dp::DataParallel net(single, {.devices = first_devices(DeviceKind::cpu, 2)});
  CHECK_THROWS_WITH(step(net, owned_batch(kPenaltyRows, 0, 0, 1)),
                    ContainsSubstring("the module gives a sum of a term that was divided"));
}
