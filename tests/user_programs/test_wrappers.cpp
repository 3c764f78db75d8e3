// Programs that wrap models in another way than the loop does.
#include <cstdint>
#include <vector>

#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

Batch batch_of(const Run& run, std::int64_t step = 0) { return shard(make_batch(16, step), run.rank(), run.size()); }

void backward(nn::Module& net, const Batch& batch) { ops::nll_loss(net(batch.images), batch.labels).backward(); }

/// A network whose forward uses its second layer only if asked to.
struct MaybeUnused : nn::Module {
  MaybeUnused() {
    register_module("first", first);
    register_module("second", second);
    initialise(kSeed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable y = nn::chain(context, x, {flatten, first});
    return log_softmax.forward(context, use_second ? second.forward(context, y) : y);
  }
  using Module::forward;
  bool use_second = true;
  nn::Flatten flatten;
  nn::Linear first{784, 10}, second{10, 10};
  nn::LogSoftmax log_softmax;
};

Values values_after_steps(const Run& run, nn::Module& model, nn::Module& net, optim::SGD& opt) {
  for (std::int64_t step = 0; step < 3; ++step) {
    opt.zero_grad();
    backward(net, batch_of(run, step));
    opt.step();
  }
  return values_of(model);
}

Values trained(Run& run, nn::Module& model) {
  nn::Module& net = run.wrap(model);
  optim::SGD opt(model, {.lr = 0.05f});
  return values_after_steps(run, model, net, opt);
}

Values trained_plainly(Run& run) {
  BodyAndHead model;
  model.context().seed = kSeed;
  return trained(run, model);
}

const std::vector<Row> kWrapperPrograms = {
    {"an optimizer made before the wrapper",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       model.context().seed = kSeed;
       optim::SGD opt(model, {.lr = 0.05f});
       nn::Module& net = run.wrap(model);
       return values_after_steps(run, model, net, opt);
     },
     {.same_as = trained_plainly}},
    {"an optimizer of the wrapper",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       model.context().seed = kSeed;
       nn::Module& net = run.wrap(model);
       optim::SGD opt(net, {.lr = 0.05f});
       return values_after_steps(run, model, net, opt);
     },
     {.same_as = trained_plainly}},
    {"a state_dict() taken before the wrapper is read after training",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       model.context().seed = kSeed;
       const auto state = model.state_dict();
       trained(run, model);
       Values values;
       for (const nn::NamedTensor& one : state) {
         const auto all = one.tensor.span<float>();
         values.insert(values.end(), all.begin(), all.end());
       }
       return values;
     },
     {}},
    {"the model is called in place of the wrapper",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       model.context().seed = kSeed;
       run.wrap(model);
       backward(model, batch_of(run));
       return gradients_of(model);
     },
     {}},
    {"a layer that the loss of no rank reaches",
     kDdp,
     [](Run& run) {
       MaybeUnused model;
       model.use_second = false;
       return trained(run, model);
     },
     {.error = "second.weight"}},
    {"a layer that the loss of one rank does not reach",
     kDdp,
     [](Run& run) {
       MaybeUnused model;
       model.use_second = run.rank() == 0;
       return trained(run, model);
     },
     {.error = "rank 1"}},
    {"labels beyond the classes",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       nn::Module& net = run.wrap(model);
       const Batch batch = batch_of(run);
       batch.labels.span<std::int64_t>()[0] = 10;
       backward(net, batch);
       return values_of(model);
     },
     {.error = "10"}},
};

}  // namespace

TEST_CASE("programs that wrap models in other ways") {
  for (const Row& row : kWrapperPrograms) check(row);
}
