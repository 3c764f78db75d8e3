// Programs that write what a recorded forward still needs, or use a tape in another order than the loop does.
#include <cstdint>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

struct Step {
  BodyAndHead model;
  Batch batch;
  nn::Module& net;
  optim::SGD opt;
  explicit Step(Run& run)
      : batch(shard(make_batch(16, 0), run.rank(), run.size())), net(run.wrap(model)), opt(model, {.lr = 0.05f}) {
    model.context().seed = kSeed;
  }
  Variable loss() { return ops::nll_loss(net(batch.images), batch.labels); }
};

using Write = void (*)(Step& step);

/// Writes between forward and backward.
Program written_before_backward(Write write) {
  return [write](Run& run) {
    Step step(run);
    step.loss().backward();
    const Variable loss = step.loss();
    write(step);
    loss.backward();
    return gradients_of(step.model);
  };
}

const std::vector<Row> kTapePrograms = {
    {"opt.step() between a forward and its backward",
     kAll,
     written_before_backward([](Step& step) { step.opt.step(); }),
     {.error = "was modified after the forward of this backward"}},
    {"weights loaded between a forward and its backward",
     kAll,
     written_before_backward([](Step& step) { step.model.load_state_dict(BodyAndHead(kSeed + 1).state_dict()); }),
     {.error = "was modified after the forward of this backward"}},
    {"a weight written between a forward and its backward",
     kAll,
     written_before_backward([](Step& step) { step.model.parameters().value(0).span<float>()[0] += 1; }),
     {.error = "was modified after the forward of this backward"}},
    {"the input written between a forward and its backward",
     kAll,
     written_before_backward([](Step& step) { step.batch.images.span<float>()[0] += 1; }),
     {.error = "was modified after the forward of this backward"}},
    {"labels written between a forward and its backward",
     kAll,
     written_before_backward([](Step& step) { step.batch.labels.span<std::int64_t>()[0] = 3; }),
     {.error = "was modified after the forward of this backward"}},
    {"backward twice",
     kAll,
     [](Run& run) {
       Step step(run);
       const Variable loss = step.loss();
       loss.backward();
       loss.backward();
       return gradients_of(step.model);
     },
     {.error = "backward"}},
    {"backward of a forward without gradients",
     kAll,
     [](Run& run) {
       Step step(run);
       const NoGrad no_grad;
       step.loss().backward();
       return gradients_of(step.model);
     },
     {.error = "gradient"}},
    {"two batches, one add, one backward",
     kAll,
     [](Run& run) {
       Step step(run);
       step.model.eval();
       const Variable first = step.loss();
       step.batch = shard(make_batch(16, 1), run.rank(), run.size());
       ops::add(first, step.loss()).backward();
       return gradients_of(step.model);
     },
     {.exact = false}},
    {"gradients of two batches accumulate",
     kAll,
     [](Run& run) {
       Step step(run);
       for (std::int64_t number = 0; number < 2; ++number) {
         step.batch = shard(make_batch(16, number), run.rank(), run.size());
         step.loss().backward();
       }
       step.opt.step();
       return values_of(step.model);
     },
     {}},
    {"step() without a backward changes nothing",
     kAll,
     [](Run& run) {
       Step step(run);
       step.opt.step();
       return values_of(step.model);
     },
     {.same_as =
          [](Run&) {
            BodyAndHead model;
            return values_of(model);
          }}},
};

}  // namespace

TEST_CASE("programs that use the tape in another order than the loop") {
  for (const Row& row : kTapePrograms) check(row);
}
