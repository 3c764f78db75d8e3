// Programs that train parts of a model, or seed models by rank.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/ops/losses.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

Batch large_batch_of(const Run& run, std::int64_t step = 0) {
  return shard(make_batch(64, step), run.rank(), run.size());
}

/// Three steps, each by `update(backward)`.
template <class Optimizers>
Values train_with(Run& run, BodyAndHead& model, Optimizers&& update) {
  model.context().seed = kSeed;
  nn::Module& net = run.wrap(model);
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = large_batch_of(run, step);
    update([&] { ops::nll_loss(net(batch.images), batch.labels).backward(); });
  }
  return values_of(model);
}

Values of_state(nn::Module& part) {
  Values values;
  for (const nn::NamedTensor& one : part.state_dict()) {
    const auto all = one.tensor.span<float>();
    values.insert(values.end(), all.begin(), all.end());
  }
  return values;
}

/// The body's values after three steps of an optimizer of the head alone, or those that it began with.
Program body_after(bool training) {
  return [training](Run& run) {
    BodyAndHead model;
    if (training) {
      optim::SGD head(model.head, {.lr = 0.05f});
      train_with(run, model, [&](auto&& backward) {
        head.zero_grad();
        backward();
        head.step();
      });
    }
    return of_state(model.body);
  };
}

Values with_one_optimizer(Run& run) {
  BodyAndHead model;
  optim::SGD all(model, {.lr = 0.05f, .momentum = 0.5f});
  return train_with(run, model, [&](auto&& backward) {
    all.zero_grad();
    backward();
    all.step();
  });
}

Values with_two_optimizers(Run& run) {
  BodyAndHead model;
  optim::SGD body(model.body, {.lr = 0.05f, .momentum = 0.5f}), head(model.head, {.lr = 0.05f, .momentum = 0.5f});
  return train_with(run, model, [&](auto&& backward) {
    body.zero_grad();
    head.zero_grad();
    backward();
    body.step();
    head.step();
  });
}

/// The norm of the head's gradients, by clip_grad_norm or by hand.
Program head_norm(bool clip) {
  return [clip](Run& run) {
    BodyAndHead model;
    model.context().seed = kSeed;
    nn::Module& net = run.wrap(model);
    const Batch batch = large_batch_of(run);
    ops::nll_loss(net(batch.images), batch.labels).backward();
    if (!clip) {  // all of the model is the head once the body's gradients are zeros
      const Tensor body = std::as_const(model.parameters()).gradients_of(0, 2);
      std::ranges::fill(body.span<float>(), 0.0f);
    }
    nn::Module& clipped = clip ? static_cast<nn::Module&>(model.head) : model;
    return Values{static_cast<float>(optim::clip_grad_norm(clipped, 1e-3))};
  };
}

const std::vector<Row> kPartPrograms = {
    {"an optimizer of the head leaves the body", kAll, body_after(true), {.same_as = body_after(false)}},
    {"two optimizers of two parts", kAll, with_two_optimizers, {.same_as = with_one_optimizer}},
    {"clip_grad_norm of the head", kAll, head_norm(true), {.same_as = head_norm(false)}},
    {"zero_grad of the head leaves the body's gradients",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       model.context().seed = kSeed;
       nn::Module& net = run.wrap(model);
       const Batch batch = large_batch_of(run);
       ops::nll_loss(net(batch.images), batch.labels).backward();
       model.head.zero_grad();
       Values filled;
       for (int slot = 0; slot < model.parameters().slot_count(); ++slot)
         filled.push_back(model.parameters().has_gradient(slot) ? 1.0f : 0.0f);
       return filled;
     },
     {.same_as =
          [](Run&) {
            return Values{1, 1, 0, 0};
          }}},
    {"a model seeded by rank has the weights and the dropout of rank 0",
     kAll,
     [](Run& run) {
       BodyAndHead model(kSeed + static_cast<std::uint64_t>(run.rank()));
       nn::Module& net = run.wrap(model);
       const Batch batch = large_batch_of(run);
       ops::nll_loss(net(batch.images), batch.labels).backward();
       return gradients_of(model);
     },
     {}},
};

}  // namespace

TEST_CASE("programs that train parts of a model, or seed it by rank") {
  for (const Row& row : kPartPrograms) check(row);
}
