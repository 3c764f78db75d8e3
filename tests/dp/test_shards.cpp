// Stamps that say more than the tensor holds: shards of ranks where there are none, rows that no batch has.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/check_finite.h"
#include "lib/autograd/grad_mode.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/own_loss.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Rank 0's of two, as a sampler with world_size = 2 gives it.
Batch half() { return shard(make_batch(16, 0), 0, 2); }

std::vector<Device> devices(int count) { return first_devices(DeviceKind::cpu, count); }

/// Its operator makes a tensor of its own and says nothing of the rows; dropout follows.
struct Forgetful : nn::Module {
  explicit Forgetful(bool passes_on) : passes_on_(passes_on) {
    register_module("fc", fc_);
    register_module("drop", drop_);
    initialise(kSeed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    Tensor doubled = x.value().clone();
    for (float& value : doubled.span<float>()) value *= 2;
    doubled.set_stamp(passes_on_ ? x.value().stamp() : Rows{});
    return drop_.forward(context, fc_.forward(context, ops::flatten(Variable(doubled))));
  }
  using nn::Module::forward;
  std::string type_name() const override { return "Forgetful"; }

 private:
  bool passes_on_;
  nn::Linear fc_{784, 10};
  nn::Dropout drop_{0.5};
};

}  // namespace

TEST_CASE("a shard that a sampler cut for two ranks is refused where no ranks are, alone and under DataParallel") {
  const char* const said = "a sampler divided this batch among several ranks";
  const Batch batch = half();
  SyncNet model(kSeed);
  const Variable loss = ops::nll_loss(model(batch.images), batch.labels);
  CHECK_THROWS_WITH(loss.backward(), ContainsSubstring(said));
  for (const int count : {1, 2}) {
    for (const bool in_replicas : {false, true}) {
      CAPTURE(count, in_replicas);
      dp::DataParallelOptions options{.devices = devices(count)};
      if (in_replicas) options.loss = [](const Variable& y, const Tensor& labels) { return ops::nll_loss(y, labels); };
      dp::DataParallel net(model, options);
      const Variable images(batch.images), labels(batch.labels);
      const Variable value = in_replicas ? net(nn::Value(nn::List{images, labels})).variable()
                                         : ops::nll_loss(net(batch.images), batch.labels);
      CHECK_THROWS_WITH(value.backward(), ContainsSubstring(said));
    }
  }
}

TEST_CASE("a shard may be classified, and trained on by a loss over its own rows or with a stamp of its own") {
  Batch batch = half();
  SyncNet model(kSeed);
  {
    const NoGrad guard;
    CHECK(model(batch.images).shape() == Shape{8, 10});
  }
  own_loss(model(batch.images)).backward();
  batch.images.set_stamp({});
  batch.labels.set_stamp({});
  model.zero_grad();
  ops::nll_loss(model(batch.images), batch.labels).backward();
}

TEST_CASE("a batch of more rows than its stamp's is refused by sums, not cut") {
  const char* const said = "so sums over the batch would leave some out";
  Batch batch = make_batch(16, 0);  // as a batch of 8 to which its mirror images were appended
  batch.images.set_stamp({.step = 0, .first = 0, .global = 8});
  SyncNet convolutions(kSeed);
  CHECK_THROWS_WITH(ops::nll_loss(convolutions(batch.images), batch.labels).backward(), ContainsSubstring(said));
  Forgetful linear(true);
  CHECK_THROWS_WITH(ops::nll_loss(ops::log_softmax(linear(batch.images)), batch.labels), ContainsSubstring(said));
  CHECK_THROWS_WITH(ops::mse_loss(linear(batch.images), zeros({16, 10})), ContainsSubstring(said));
  CHECK_THROWS_WITH(own_loss(linear(batch.images)).backward(), ContainsSubstring(said));
  for (Tensor* const tensor : {&batch.images, &batch.labels}) tensor->set_stamp({});
  ops::nll_loss(ops::log_softmax(linear(batch.images)), batch.labels).backward();
}

TEST_CASE("while CheckFinite lives, dropout behind an operator that forgot the stamp is refused") {
  const Batch batch = make_batch(8, 3);
  Forgetful forgets(false), passes(true);
  forgets(batch.images);
  const CheckFinite check;
  CHECK_THROWS_WITH(forgets(batch.images), ContainsSubstring("an operator in between has dropped it"));
  passes(batch.images);
  Batch own = batch;
  own.images.set_stamp({});
  forgets(own.images);
  forgets.eval();
  forgets(batch.images);
}
