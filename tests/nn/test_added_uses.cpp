// A model knows when gradients of several uses of a parameter were added up on one device: bits then depend on the
// number of devices.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet::nn;
using namespace duet_test;

namespace {

/// A linear layer that is called once, or once more on what it gave.
struct Repeated : Module {
  explicit Repeated(bool twice) : twice_(twice) {
    register_module("first", first_);
    register_module("square", square_);
    initialise(std::uint64_t{1});
  }
  Variable forward(Context& context, const Variable& x) const override {
    Variable y = square_.forward(context, ops::relu(first_.forward(context, ops::flatten(x))));
    if (twice_) y = square_.forward(context, ops::relu(y));
    return ops::log_softmax(y);
  }
  using Module::forward;
  std::string type_name() const override { return "Repeated"; }
  bool twice_;
  Linear first_{784, 10}, square_{10, 10};
};

Variable loss_of(Module& net, const duet_test::Batch& batch) { return ops::nll_loss(net(batch.images), batch.labels); }

}  // namespace

TEST_CASE("a layer that is called twice, losses that are added, and backward runs that accumulate are several uses") {
  Repeated once(false), twice(true);
  for (int step = 0; step < 2; ++step) {
    once.zero_grad();
    loss_of(once, make_batch(8, step)).backward();
  }
  CHECK_FALSE(once.parameters().added_uses());
  loss_of(twice, make_batch(8, 1)).backward();
  CHECK(twice.parameters().added_uses());

  loss_of(once, make_batch(8, 3)).backward();  // without zero_grad()
  CHECK(once.parameters().added_uses());
  Repeated added(false);
  ops::add(loss_of(added, make_batch(8, 1)), loss_of(added, make_batch(8, 2))).backward();
  CHECK(added.parameters().added_uses());
}

TEST_CASE("several uses in replicas or ranks are several uses in the model, of which a warning names one, once") {
  for (const bool in_ranks : {false, true})
    for (const bool repeated : {false, true}) {
      const auto train = [&](Repeated& model, Module& net, std::int64_t begin, std::int64_t end) {
        for (int step = 0; step < 2; ++step) {
          model.zero_grad();
          loss_of(net, make_batch(8, step).rows(begin, end)).backward();
        }
        return model.parameters().added_uses() == repeated;
      };
      const Said said;
      std::array<bool, 2> right{true, true};
      Repeated model(repeated);
      dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
      if (!in_ranks) right[0] = train(model, net, 0, 8);
      if (in_ranks)
        ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
          Repeated own(repeated);
          ddp::DistributedDataParallel ranks(own, group);
          const int rank = group.rank();
          right[static_cast<std::size_t>(rank)] = train(own, ranks, 4 * rank, 4 * rank + 4);
        });
      CHECK(right == std::array{true, true});
      CHECK(said.lines() == repeated);
      CHECK(said.text().starts_with("warning: square.") == repeated);
    }
}

TEST_CASE("views of a parameter that meet the batch several times are several uses of it") {
  Linear layer(4, 4);
  layer.initialise(std::uint64_t{1});
  const Variable turned = ops::transpose(layer.context().parameter(0), 0, 1);
  ops::batch_mean(ops::matmul(ops::matmul(zeros({2, 4}), turned), turned)).backward();
  CHECK(layer.parameters().shared_slot() == layer.parameters().slots().data());
}

TEST_CASE("gradients that accumulate under no_sync() are several uses, of which no warning speaks") {
  const Said said;
  std::vector<int> before(2), after(2);
  ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
    Repeated model(false);
    ddp::DistributedDataParallel net(model, group);
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto backward = [&](std::int64_t step) {
      loss_of(net, make_batch(8, step).rows(4 * group.rank(), 4 * group.rank() + 4)).backward();
    };
    {
      const auto guard = net.no_sync();
      backward(1);
    }
    before[rank] = model.parameters().added_uses();
    backward(2);
    after[rank] = model.parameters().added_uses();
  });
  CHECK(before == std::vector<int>{0, 0});
  CHECK(after == std::vector<int>{1, 1});
  CHECK(said.text().empty());
}
