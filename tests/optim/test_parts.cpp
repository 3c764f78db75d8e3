// Optimizers, clip_grad_norm and zero_grad() of a part of a model.
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet_test;

namespace {

using Values = std::vector<float>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(nn::Module&)>;

template <class Optimizer, class Options>
MakeOptimizer with(const Options& options) {
  return [options](nn::Module& module) { return std::make_unique<Optimizer>(module, options); };
}

const std::vector<MakeOptimizer> kOptimizers = {
    with<optim::SGD>(optim::SGDOptions{.lr = 0.05f}),
    with<optim::SGD>(optim::SGDOptions{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.1f}),
    with<optim::Adam>(optim::AdamOptions{.lr = 0.01f}),
    with<optim::AdamW>(optim::AdamWOptions{.lr = 0.01f}),
};

void append(Values& to, const Tensor& tensor) {
  if (tensor.dtype() != DType::f32) return;
  to.insert(to.end(), tensor.span<float>().begin(), tensor.span<float>().end());
}

/// Parameters and buffers.
Values values_of(nn::Module& module) {
  Values all;
  for (const NamedTensor& one : module.state_dict()) append(all, one.tensor);
  return all;
}

Values gradient_of(TwoParts& model, const std::string& name) {
  const nn::FlatParameters& store = model.parameters();
  Values all;
  for (int slot = 0; slot < store.slot_count(); ++slot)
    if (store.slots()[static_cast<std::size_t>(slot)].name == name) append(all, store.gradient(slot));
  REQUIRE_FALSE(all.empty());
  return all;
}

void backward(TwoParts& model, std::int64_t step) {
  const auto batch = make_batch(9, step);
  ops::nll_loss(model(batch.images), batch.labels).backward();
}

void train(TwoParts& model, const std::vector<optim::Optimizer*>& optimizers, std::int64_t first = 0,
           std::int64_t end = 3) {
  for (std::int64_t step = first; step < end; ++step) {
    for (optim::Optimizer* const one : optimizers) one->zero_grad();
    backward(model, step);
    for (optim::Optimizer* const one : optimizers) one->step();
  }
}

double norm_of(const Values& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * double{value};
  return std::sqrt(squares);
}

NamedTensors joined(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST_CASE("an optimizer of a part leaves the rest of the model alone") {
  for (const MakeOptimizer& make : kOptimizers) {
    TwoParts model;
    const Values backbone = values_of(model.conv), hidden = values_of(model.hidden), head = values_of(model.head);
    const auto optimizer = make(model.head);
    train(model, {optimizer.get()});
    CHECK(values_of(model.conv) == backbone);
    CHECK(values_of(model.hidden) == hidden);
    CHECK(values_of(model.head) != head);
  }
}

TEST_CASE("two optimizers of two parts train as one of the whole model") {
  for (const MakeOptimizer& make : kOptimizers) {
    TwoParts whole, in_parts;
    const auto one = make(whole);
    train(whole, {one.get()});
    const auto backbone = make(in_parts.backbone), hidden = make(in_parts.hidden), head = make(in_parts.head);
    train(in_parts, {backbone.get(), hidden.get(), head.get()});
    CHECK(values_of(in_parts) == values_of(whole));
    const NamedTensors parts = joined(joined(backbone->state(), hidden->state()), head->state()), all = one->state();
    REQUIRE(parts.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(parts[i].name == all[i].name);
      Values got, expected;
      append(got, parts[i].tensor);
      append(expected, all[i].tensor);
      CHECK(got == expected);
    }
  }
}

TEST_CASE("an optimizer of a part goes on from its part of a state") {
  for (const MakeOptimizer& make : kOptimizers) {
    TwoParts without, before;
    const auto a = make(without.head), b = make(without.backbone);
    train(without, {a.get(), b.get()}, 0, 5);
    const auto c = make(before.head), d = make(before.backbone);
    train(before, {c.get(), d.get()}, 0, 2);
    const NamedTensors state = joined(c->state(), d->state());  // as a checkpoint holds it
    for (const NamedTensor& one : c->state()) CHECK(one.name.starts_with("head."));
    TwoParts after(3);
    after.load_state_dict(before.state_dict());
    const auto e = make(after.head), f = make(after.backbone);
    e->load_state(state);
    f->load_state(state);
    after.context().seed = 7;
    train(after, {e.get(), f.get()}, 2, 5);
    CHECK(values_of(after) == values_of(without));
  }
}

TEST_CASE("a part's optimizer refuses the state of what its model has not") {
  TwoParts model;
  optim::SGD optimizer(model.head, {.lr = 0.1f, .momentum = 0.9f});
  CHECK_THROWS_WITH(optimizer.load_state({{"tail.weight.momentum_buffer", zeros({10, 147})}}),
                    ContainsSubstring("the state has 'tail.weight.momentum_buffer', which this optimizer lacks"));
  CHECK_THROWS_WITH(optimizer.load_state({{"head.weight.momentum_buffer", zeros({10, 146})}}),
                    ContainsSubstring("expected f32[10, 147]"));
  CHECK_THROWS_WITH(optimizer.load_state({{"head.weight.exp_avg", zeros({10, 147})}}),
                    ContainsSubstring("which this optimizer lacks"));
  CHECK_NOTHROW(optimizer.load_state({{"hidden.weight.exp_avg", zeros({147, 147})}}));  // another part's
}

TEST_CASE("an optimizer of a part without parameters is an error") {
  TwoParts model;
  CHECK_THROWS_WITH(optim::SGD(model.drop, {}), ContainsSubstring("SGD: drop (Dropout) has no parameters"));
}

TEST_CASE("clip_grad_norm of a part has its norm, and scales its gradients") {
  TwoParts model, other;
  backward(model, 0);
  backward(other, 0);
  const Values weight = gradient_of(model, "head.weight"), bias = gradient_of(model, "head.bias");
  Values head = weight;
  head.insert(head.end(), bias.begin(), bias.end());
  const Values hidden = gradient_of(model, "hidden.weight");
  const double norm = optim::clip_grad_norm(model.head, 0.01);
  CHECK(std::abs(norm / norm_of(head) - 1) < 1e-6);
  CHECK(std::abs(norm_of(gradient_of(model, "head.weight")) / norm_of(weight) - 0.01 / norm) < 1e-4);
  CHECK(gradient_of(model, "hidden.weight") == hidden);
  CHECK(optim::clip_grad_norm(other, 1e9) > norm);
  CHECK(optim::clip_grad_norm(other.drop, 1.0) == 0);
}

TEST_CASE("zero_grad of a part, and of its optimizer, empties the gradients of the part only") {
  for (const bool of_optimizer : {false, true}) {
    TwoParts model;
    optim::SGD optimizer(model.head, {.lr = 0.1f});
    backward(model, 0);
    const Values head = gradient_of(model, "head.weight"), hidden = gradient_of(model, "hidden.weight");
    if (of_optimizer) {
      optimizer.zero_grad();
    } else {
      model.head.zero_grad();
    }
    const nn::FlatParameters& store = model.parameters();
    for (int slot = 0; slot < store.slot_count(); ++slot)
      CHECK(store.has_gradient(slot) == !store.slots()[static_cast<std::size_t>(slot)].name.starts_with("head."));
    backward(model, 1);
    TwoParts second, both;
    backward(second, 1);
    backward(both, 0);
    backward(both, 1);
    CHECK(gradient_of(model, "head.weight") == gradient_of(second, "head.weight"));
    CHECK(gradient_of(model, "hidden.weight") == gradient_of(both, "hidden.weight"));
  }
}

TEST_CASE("parts that are emptied one by one are an emptied model") {
  TwoParts model;
  backward(model, 0);
  nn::FlatParameters& store = model.parameters();
  const std::uint64_t before = store.zero_grad_count();
  model.backbone.zero_grad();
  model.hidden.zero_grad();
  CHECK(store.zero_grad_count() == before);
  CHECK(store.hooks().normalisers() != 0);
  model.head.zero_grad();
  CHECK(store.zero_grad_count() == before + 1);
  CHECK(store.hooks().normalisers() == 0);
}
