// Stamps that scale, move, are missing or made by hand, on any number of devices.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/blocks.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet_test;

namespace {

enum class StampCase { folds, time_first, halves, beside_constant, keeps_loss };

/// Of a batch, or of a list of a constant and a batch.
struct StampedNet : nn::Module {
  explicit StampedNet(StampCase the_kind, std::int64_t rows = 7)
      : kind(the_kind), constant(empty({rows, 16})), head(the_kind == StampCase::halves ? 8 : 16, 10) {
    register_module("body", body);
    register_module("dropout", dropout);
    register_module("head", head);
    initialise(kSeed);
    Mt19937(5).uniform(constant.span<float>(), -1, 1);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    Variable h = body.forward(context, ops::flatten(x));
    if (kind == StampCase::keeps_loss) kept = ops::batch_mean(h * h);
    if (kind == StampCase::halves) return head.forward(context, ops::reshape(h, {-1, 8}));
    if (kind == StampCase::folds) h = ops::reshape(ops::gelu(ops::reshape(h, {-1, 8})), {-1, 16});
    if (kind == StampCase::time_first) {
      const Variable steps = ops::transpose(ops::reshape(h, {-1, 4, 4}), 0, 1);
      h = ops::reshape(ops::transpose(ops::tanh(dropout.forward(context, steps)), 0, 1), {-1, 16});
    }
    return ops::log_softmax(head.forward(context, dropout.forward(context, h)));
  }
  nn::Value forward(nn::Context& context, const nn::Value& input) const override {
    if (input.is_variable()) return forward(context, input.variable());
    const Variable h = body.forward(context, ops::flatten(input.list()[1].variable()));
    return ops::log_softmax(head.forward(context, h + ops::sum(input.list()[0].variable(), {0})));
  }
  StampCase kind;
  Tensor constant;
  nn::Linear body{784, 16};
  nn::Dropout dropout{0.3};
  nn::Linear head;
  mutable Variable kept;
};

using StampedValues = std::vector<float>;

/// Two steps. Stamps are made by hand, or where ranks own blocks as a sampler makes them.
StampedValues train_stamped(StampedNet& model, nn::Module& net, std::int64_t rows, int rank = 0, int size = 1) {
  optim::SGD opt(model, {.lr = 0.1f});
  for (std::int64_t step = 0; step < 2; ++step) {
    Batch batch = make_batch(rows, step).rows(share_begin(rank, size, rows, 8), share_begin(rank + 1, size, rows, 8));
    Rows stamp = batch.images.stamp();
    stamp.shards = size;
    stamp.owned = size > 1;
    batch.images.set_stamp(stamp);
    batch.labels.set_stamp(stamp);
    opt.zero_grad();
    const bool lists = model.kind == StampCase::beside_constant;
    const Variable y = lists ? net(nn::Value(nn::List{model.constant, batch.images})).variable() : net(batch.images);
    const Variable loss = model.kind == StampCase::halves ? ops::batch_mean(y * y) : ops::nll_loss(y, batch.labels);
    (model.kept.defined() ? loss + model.kept : loss).backward();
    opt.step();
  }
  const auto values = model.parameters().values().span<float>();
  return {values.begin(), values.end()};
}

StampedValues train_stamped_ranks(StampCase kind, std::int64_t rows, int ranks, std::int64_t constant_rows = 7) {
  StampedValues values;
  ddp::run_rank_threads(ranks, [&](ddp::ProcessGroup& group) {
    StampedNet model(kind, constant_rows);
    ddp::DistributedDataParallel net(model, group);
    const StampedValues own = train_stamped(model, net, rows, group.rank(), ranks);
    if (group.rank() == 0) values = own;
  });
  return values;
}

}  // namespace

TEST_CASE(
    "views of rows, constants beside a batch and stamps made by hand leave the same bits on any number of devices") {
  for (const StampCase kind :
       {StampCase::folds, StampCase::time_first, StampCase::halves, StampCase::beside_constant}) {
    const std::int64_t rows = kind == StampCase::halves ? 16 : 13;
    StampedNet single(kind);
    const StampedValues expected = train_stamped(single, single, rows);
    for (const int count : {2, 3, 4, 5}) {
      CAPTURE(static_cast<int>(kind), count);
      CHECK(train_stamped_ranks(kind, rows, count) == expected);
      StampedNet model(kind);
      dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, count)});
      CHECK(train_stamped(model, net, rows) == expected);
    }
  }
}

TEST_CASE("a warning names a tensor without a stamp that may be rows of the batch, and results are equal to rounding") {
  StampedNet single(StampCase::beside_constant, 3);
  const StampedValues expected = train_stamped(single, single, 9);
  const Said said;
  const StampedValues got = train_stamped_ranks(StampCase::beside_constant, 9, 3, 3);  // rank 1 has 3 of the 9 rows
  CHECK(said.lines() == 1);
  CHECK_THAT(said.text(), ContainsSubstring("warning: input[0] [3, 16] has as many rows as the batch here"));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::fmax(worst, std::fabs(double{got[i]} - double{expected[i]}));
  CHECK(worst < 1e-6);
}

TEST_CASE("backward refuses a loss that the parts of a rank's batch have left in a member") {
  CHECK_NOTHROW(train_stamped_ranks(StampCase::keeps_loss, 16, 2));
  CHECK_THROWS_WITH(train_stamped_ranks(StampCase::keeps_loss, 16, 3),
                    ContainsSubstring("of a replica past the output of its wrapper"));
}

TEST_CASE("one rank warns if the ranks have shares of the batch that aren't whole blocks") {
  const Said said;
  ddp::run_rank_threads(3, [](ddp::ProcessGroup& group) {
    StampedNet model(StampCase::folds);
    ddp::DistributedDataParallel net(model, group);
    Batch batch = make_batch(9, 0).rows(3 * group.rank(), 3 * group.rank() + 3);
    Rows stamp = batch.images.stamp();
    stamp.shards = 3;
    batch.images.set_stamp(stamp);
    net(batch.images);
  });
  CHECK(said.lines() == 1);
  CHECK_THAT(said.text(), ContainsSubstring("warning: the 3 ranks have shares of the batch that are not whole blocks"));
}
