// train() and eval() of a part of a model.
#include <cstdint>
#include <vector>

#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet_test;

namespace {

std::vector<float> values_of(const Tensor& x) { return {x.span<float>().begin(), x.span<float>().end()}; }

Tensor running_mean(TwoParts& model) { return model.backbone.state_dict()[4].tensor; }

}  // namespace

TEST_CASE("eval of a part switches its modules only") {
  TwoParts model;
  model.head.eval();
  CHECK(model.training());
  CHECK(model.backbone.training());
  CHECK_FALSE(model.head.training());
  model.backbone.eval();
  CHECK_FALSE(model.norm.training());
  CHECK(model.drop.training());
  model.train();
  CHECK(model.head.training());
  CHECK(model.norm.training());
  model.eval();
  model.drop.train();
  CHECK_FALSE(model.training());
  CHECK(model.drop.training());
}

TEST_CASE("a batch norm of a part in eval normalises by its running statistics, and leaves them") {
  const auto batch = make_batch(9, 0);
  TwoParts model, whole;
  REQUIRE(model.backbone.state_dict()[4].name == "1.running_mean");
  model.backbone.eval();
  const std::vector<float> before = values_of(running_mean(model));
  whole.eval();
  model.drop.eval();
  const Variable y = model(batch.images);
  CHECK(values_of(y.value()) == values_of(whole(batch.images).value()));
  CHECK(values_of(running_mean(model)) == before);
  // Its weights have the gradients of a model that is in eval as a whole.
  ops::nll_loss(y, batch.labels).backward();
  ops::nll_loss(whole(batch.images), batch.labels).backward();
  REQUIRE(model.parameters().slots()[2].name == "backbone.1.weight");
  CHECK(values_of(model.parameters().gradient(2)) == values_of(whole.parameters().gradient(2)));
  model.train();
  model(batch.images);
  CHECK(values_of(running_mean(model)) != before);
}

TEST_CASE("only the dropout of a model in eval draws") {
  const auto batch = make_batch(9, 0);
  TwoParts model, plain;
  model.eval();
  plain.eval();
  const std::vector<float> without = values_of(plain(batch.images).value());
  model.drop.train();
  const std::vector<float> first = values_of(model(batch.images).value());
  CHECK(first != without);
  CHECK(values_of(model(batch.images).value()) != first);
  CHECK(values_of(running_mean(model)) == values_of(running_mean(plain)));
}
