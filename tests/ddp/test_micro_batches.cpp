// Which batches a reduction weights: those whose forward its backwards have reached, also where each was a part.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "dp/data_parallel.h"
#include "lib/autograd/node.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

/// As a loader per rank stamps it: the rank's own global batch.
Batch own_batch(const RankRows& rows, int rank, Device device, std::int64_t step = 0) {
  Batch batch = rows_of(rows, rank, step, false).to(device);
  batch.images.set_stamp({.step = step, .first = 0, .global = batch.images.size(0)});
  batch.labels.set_stamp({.step = step, .first = 0, .global = batch.labels.size(0)});
  return batch;
}

/// One backward per half of the batch; the first under no_sync().
void accumulate_halves(DistributedDataParallel& net, const Batch& batch) {
  const std::int64_t all = batch.images.size(0);
  const auto backward = [&](std::int64_t begin, std::int64_t end) {
    const Batch part = batch.rows(begin, end);
    ops::nll_loss(net(part.images), part.labels).backward();
  };
  {
    const auto guard = net.no_sync();
    backward(0, all / 2);
  }
  backward(all / 2, all);
}

/// The mean over ranks of the gradients of each rank's own mean.
template <class Net>
Values mean_of_means(const RankRows& rows) {
  Net model(kSeed);
  const Batch all = rows_of({rows[0] + rows[1]}, 0, 0, false);
  const Variable output = model(all.images);
  const Tensor gradient = zeros({rows[0] + rows[1], 10});
  for (std::int64_t i = 0; i < rows[0] + rows[1]; ++i) {
    const auto own = static_cast<float>(i < rows[0] ? rows[0] : rows[1]);
    gradient.span<float>()[static_cast<std::size_t>(
        i * 10 + all.labels.span<std::int64_t>()[static_cast<std::size_t>(i)])] = -0.5f / own;
  }
  output.backward(gradient);
  return gradients_of(model);
}

}  // namespace

TEST_CASE("no_sync() may be held depending on the step, several times at once, and for longer than the wrapper lives") {
  const RankRows rows{8, 8};
  const auto halves = [](auto hold) {
    return [hold](DistributedDataParallel& net, int rank, Device device) {
      const Batch batch = own_batch({8, 8}, rank, device);
      for (const bool last : {false, true}) {
        const auto held = hold(net, last);
        const Batch part = batch.rows(last ? 4 : 0, last ? 8 : 4);
        ops::nll_loss(net(part.images), part.labels).backward();
      }
    };
  };
  using NoSync = DistributedDataParallel::NoSync;
  const Values expected = alone<Plain>(rows, library_loss);
  check_all_close(of_ranks<Plain>(2, halves([](DistributedDataParallel& net, bool last) {
                                    std::optional<NoSync> guard;
                                    if (!last) guard.emplace(net.no_sync());
                                    return guard;
                                  })),
                  expected);
  check_all_close(of_ranks<Plain>(2, halves([](DistributedDataParallel& net, bool last) {
                                    NoSync guard = net.no_sync();
                                    guard = net.no_sync();  // held already
                                    if (last) guard = {};
                                    return guard;
                                  })),
                  expected);
  NoSync guard;
  run_ranks(Over::memory, 1, [&](ProcessGroup& group) {
    Plain model(kSeed);
    DistributedDataParallel net(model, group);
    guard = net.no_sync();
  });
}

TEST_CASE("a rank's own whole batch may be cut into micro-batches") {
  for (const RankRows& rows : {RankRows{8, 8}, RankRows{8, 14}}) {
    CAPTURE(rows);
    const auto step = [&](DistributedDataParallel& net, int rank, Device device) {
      accumulate_halves(net, own_batch(rows, rank, device));
    };
    check_all_close(of_ranks<Plain>(2, step), alone<Plain>(rows, library_loss));
    check_all_close(of_ranks<Plain>(2, step, {.rule = GradientRule::torch}), mean_of_means<Plain>(rows));
  }
}

TEST_CASE("shards that were cut by hand are parts of one batch, all of it on one rank included") {
  for (const RankRows& rows : {RankRows{5, 3}, RankRows{3, 0}, RankRows{0, 3}}) {
    CAPTURE(rows);
    check_all_close(after_a_step<Plain>(rows, library_loss, true), alone<Plain>(rows, library_loss));
  }
}

TEST_CASE("parts that are neither a rank's whole batch nor together one batch are refused by every rank") {
  const auto half = [](DistributedDataParallel& net, int rank, Device device) {
    const Batch part = own_batch({8, 8}, rank, device).rows(0, 4);
    ops::nll_loss(net(part.images), part.labels).backward();
  };
  const auto same_first = [](DistributedDataParallel& net, int rank, Device device) {
    for (const int step : {0, 1}) {
      DistributedDataParallel::NoSync guard;
      if (step == 0) guard = net.no_sync();
      const Batch part = rows_of({4, 4}, step == 0 ? 0 : rank, step, true).to(device);
      ops::nll_loss(net(part.images), part.labels).backward();
    }
  };
  const auto refused = ContainsSubstring("neither each rank's own batch, whole, nor together one batch");
  CHECK_THAT(failure_of(2, half), refused);
  CHECK_THAT(failure_of(2, same_first), refused);
}

TEST_CASE("a synchronised batch norm cannot weight micro-batches of ranks with different numbers of rows") {
  const auto step = [](DistributedDataParallel& net, int rank, Device device) {
    accumulate_halves(net, own_batch({8, 14}, rank, device));
  };
  CHECK_THAT(failure_of<SyncNet>(2, step), ContainsSubstring("a synchronised batch norm cannot weight parts"));
}

TEST_CASE("a forward that no backward follows leaves the weights alone") {
  const RankRows rows = {8, 8};
  for (const bool training : {false, true}) {
    CAPTURE(training);
    const auto got = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
      for (std::int64_t step = 0; step < 2; ++step) {
        if (rank == 0) {
          net.train(training);
          net(rows_of({20}, 0, 5, false).to(device).images);
          net.train();
        }
        net.zero_grad();
        const Batch batch = rows_of(rows, rank, 0, false).to(device);
        ops::nll_loss(net(batch.images), batch.labels).backward();
      }
    });
    check_all_close(got, alone<Plain>(rows, library_loss));
  }
}

TEST_CASE("each backward has the weights of its own forwards, in any order") {
  const RankRows rows[2] = {{16, 7}, {3, 12}};
  for (const int first : {0, 1}) {
    CAPTURE(first);
    const auto got = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
      const auto loss = [&](int step) {
        const Batch batch = rows_of(rows[step], rank, step, false).to(device);
        return ops::nll_loss(net(batch.images), batch.labels);
      };
      const Variable losses[2] = {loss(0), loss(1)};
      losses[first].backward();
      losses[1 - first].backward();
    });
    Plain model(kSeed);
    for (const int step : {0, 1}) {
      const Batch batch = rows_of({rows[step][0] + rows[step][1]}, 0, step, false);
      ops::nll_loss(model(batch.images), batch.labels).backward();
    }
    check_all_close(got, gradients_of(model));
  }
}

TEST_CASE("zero_grad() drops the weights of what had accumulated") {
  const RankRows rows = {8, 8};
  const auto got = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
    {
      const auto guard = net.no_sync();
      const Batch batch = rows_of({2, 5}, rank, 3, false).to(device);
      ops::nll_loss(net(batch.images), batch.labels).backward();
    }
    const Batch batch = rows_of(rows, rank, 0, false).to(device);
    const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
    net.zero_grad();
    loss.backward();
  });
  check_all_close(got, alone<Plain>(rows, library_loss));
}

TEST_CASE("a forward past the wrapper is refused, as its rows are unknown") {
  const auto step = [](DistributedDataParallel& net, int rank, Device device) {
    const Batch batch = rows_of({8, 5}, rank, 0, false).to(device);
    ops::nll_loss(net.module()(batch.images), batch.labels).backward();
  };
  CHECK_THAT(failure_of(2, step), ContainsSubstring("call the wrapper, not the module in it"));
}

TEST_CASE("GradientRule::torch with a synchronised batch norm has the mean of the ranks' means") {
  const RankRows rows = {16, 7};
  const auto got = of_ranks<SyncNet>(2,
                                     [&](DistributedDataParallel& net, int rank, Device device) {
                                       const Batch batch = rows_of(rows, rank, 0, false).to(device);
                                       ops::nll_loss(net(batch.images), batch.labels).backward();
                                     },
                                     {.rule = GradientRule::torch});
  check_all_close(got, mean_of_means<SyncNet>(rows));
}

TEST_CASE("DP inside of DDP of a module that returns its loss keeps to the ranks' rows") {
  struct WithLoss : nn::Module {
    WithLoss() {
      register_module("net", net);
      initialise(kSeed);
    }
    nn::Value forward(nn::Context& context, const nn::Value& input) const override {
      const Variable output = net.forward(context, input.list()[0].variable());
      return ops::nll_loss(output, input.list()[1].variable().value());
    }
    Variable forward(nn::Context& context, const Variable& x) const override { return net.forward(context, x); }
    std::string type_name() const override { return "WithLoss"; }
    nn::Linear net{784, 10};
  };
  const RankRows rows = {16, 6};
  std::vector<Values> got(2);
  run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
    WithLoss model;
    model.to({DeviceKind::cpu, 2 * group.rank()});
    dp::DataParallel inner(model,
                           {.devices = {{DeviceKind::cpu, 2 * group.rank()}, {DeviceKind::cpu, 2 * group.rank() + 1}}});
    DistributedDataParallel net(inner, group);
    const Batch batch = rows_of(rows, group.rank(), 0, false).to({DeviceKind::cpu, 2 * group.rank()});
    const Tensor images = batch.images.reshape({batch.images.size(0), 784});
    const Variable losses = net(nn::Value(nn::List{Variable(images), Variable(batch.labels)})).variable();
    const Tensor ones = zeros(losses.shape(), DType::f32, losses.device());
    for (float& one : ones.span<float>()) one = 1;
    losses.backward(ones);
    got[static_cast<std::size_t>(group.rank())] = gradients_of(model);
  });
  WithLoss model;
  const Batch all = rows_of({22}, 0, 0, false);
  ops::nll_loss(model(all.images.reshape({22, 784})), all.labels).backward();
  check_all_close(got, gradients_of(model));
}

TEST_CASE("a backward that threw leaves the next one whole") {
  struct FailingNode final : Node {
    const char* name() const override { return "failing"; }
    void backward(const Gradients&) override { throw NumericError("planted"); }
  };
  struct Failing : nn::Module {
    Failing() {
      register_module("first", first);
      register_module("second", second);
      initialise(kSeed);
    }
    Variable forward(nn::Context& context, const Variable& x) const override {
      Variable y = first.forward(context, x);
      if (fails) {
        auto node = std::make_shared<FailingNode>();
        node->add_edge(y.edge());
        y = Variable(y.value(), std::move(node));
      }
      return second.forward(context, y);
    }
    std::string type_name() const override { return "Failing"; }
    nn::Linear first{784, 5}, second{5, 10};
    bool fails = false;
  };
  const RankRows rows = {8, 5};
  const auto step = [&](Failing& model, nn::Module& net, int rank, Device device, const RankRows& of) {
    const Batch batch = rows_of(of, rank, 0, false).to(device);
    const Variable loss = own_loss(net(batch.images.reshape({batch.images.size(0), 784})));
    if (model.fails) {
      CHECK_THROWS_AS(loss.backward(), NumericError);
    } else {
      loss.backward();
    }
  };
  std::vector<Values> got(2);
  run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    Failing model;
    model.to(device);
    DistributedDataParallel net(model, group);
    for (const bool fails : {true, false}) {
      model.fails = fails;
      net.zero_grad();
      step(model, net, group.rank(), device, fails ? RankRows{3, 9} : rows);
    }
    got[static_cast<std::size_t>(group.rank())] = gradients_of(model);
  });
  Failing model;
  step(model, model, 0, {}, {13});
  check_all_close(got, gradients_of(model));
}
