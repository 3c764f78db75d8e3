// Learning rate schedules against values of PyTorch 2.15.
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/optim/lr_scheduler.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

struct Optimizer {
  nn::Linear model{1, 1};
  optim::SGD sgd{model, {.lr = 0.2f, .momentum = 0.9f}};
};

void check(const Optimizer& optimizer, optim::LRScheduler& schedule, const std::vector<double>& wanted) {
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(optimizer.sgd.lr() - wanted[step]) <= 1e-7 * wanted[step]);
    schedule.step();
  }
}

}  // namespace

// The rates of torch.optim.lr_scheduler over an SGD with lr=0.2.
TEST_CASE("schedules have the rates of PyTorch's") {
  Optimizer one;
  optim::StepLR steps(one.sgd, 3, 0.5);
  check(one, steps, {0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025});
  Optimizer two;
  optim::MultiStepLR milestones(two.sgd, {5, 2, 5}, 0.1);
  check(two, milestones, {0.2, 0.2, 0.02, 0.02, 0.02, 0.0002, 0.0002});
  Optimizer three;
  optim::CosineAnnealingLR cosine(three.sgd, 10, 0.01);
  check(three, cosine,
        {0.2, 0.195350369, 0.181856614, 0.160839599, 0.134356614, 0.105, 0.0756433855, 0.049160401, 0.0281433855,
         0.014649631, 0.01, 0.014649631, 0.0281433855});
  Optimizer four;
  optim::LinearLR linear(four.sgd, 0.25, 1, 4);
  check(four, linear, {0.05, 0.0875, 0.125, 0.1625, 0.2, 0.2, 0.2});
}

// torch.optim.lr_scheduler.SequentialLR(sgd, [LinearLR(sgd, 0.1, 1, 4), CosineAnnealingLR(sgd, 10)], [4])
TEST_CASE("schedules follow one another from the optimizer's first rate") {
  Optimizer optimizer;
  const optim::LinearLR warm_up(optimizer.sgd, 0.1, 1, 4);
  const optim::CosineAnnealingLR cosine(optimizer.sgd, 10);
  optim::SequentialLR both(optimizer.sgd, {&warm_up, &cosine}, {4});
  check(optimizer, both,
        {0.02, 0.065, 0.11, 0.155, 0.2, 0.195105652, 0.180901699, 0.158778525, 0.130901699, 0.1, 0.0690983006,
         0.0412214748, 0.0190983006, 0.00489434837, 0.0, 0.00489434837});
  optimizer.sgd.set_lr(0.05f);
  CHECK(optimizer.sgd.initial_lr() == 0.2f);
  both.set_steps(4);
  CHECK(optimizer.sgd.lr() == 0.2f);
}

TEST_CASE("a schedule goes on from a number of steps, and refuses what makes no sense") {
  Optimizer optimizer;
  optim::StepLR schedule(optimizer.sgd, 3, 0.5);
  schedule.set_steps(7);
  CHECK(optimizer.sgd.lr() == 0.05f);
  CHECK(schedule.steps() == 7);
  CHECK_THROWS_AS(schedule.set_steps(-1), UsageError);
  CHECK_THROWS_WITH(optim::StepLR(optimizer.sgd, 0), "StepLR: step_size is 0, expected 1 or more");
  CHECK_THROWS_AS(optim::SequentialLR(optimizer.sgd, {&schedule, &schedule}, {}), UsageError);
  CHECK_THROWS_AS(optim::SequentialLR(optimizer.sgd, {&schedule, &schedule, &schedule}, {3, 2}), UsageError);
  CHECK_THROWS_AS(optim::CosineAnnealingLR(optimizer.sgd, 0), UsageError);
  CHECK_THROWS_AS(optim::LinearLR(optimizer.sgd, 0), UsageError);
}

TEST_CASE("a schedule behind a loaded state must be told its steps") {
  Optimizer trained;
  const auto step = [](Optimizer& one) {
    ops::mse_loss(one.model(from_values<float>({1, 1}, {1})), zeros({1, 1})).backward();
    one.sgd.step();
  };
  step(trained);
  const std::vector<nn::NamedTensor> state = trained.sgd.state();
  for (const bool loads_first : {true, false}) {
    Optimizer resumed;
    std::optional<optim::StepLR> schedule;
    if (loads_first) resumed.sgd.load_state(state);
    schedule.emplace(resumed.sgd, 3, 0.5);
    if (!loads_first) resumed.sgd.load_state(state);
    CHECK_THROWS_WITH(step(resumed), duet_test::ContainsSubstring("SGD continues from a loaded state, but a learning "
                                                                  "rate schedule begins at step 0"));
    schedule->set_steps(0);
    CHECK_NOTHROW(step(resumed));
    resumed.sgd.load_state(state);  // goes back in the same run
    CHECK_NOTHROW(step(resumed));
  }
  auto several = std::make_unique<Optimizer>();
  const optim::LinearLR warm_up(several->sgd);
  std::optional<optim::LinearLR> other(several->sgd);
  const optim::StepLR last(several->sgd, 3);  // outlives its optimizer
  optim::SequentialLR schedule(several->sgd, {&warm_up, &last}, {8});
  several->sgd.load_state(state);
  schedule.set_steps(1);
  CHECK_THROWS_AS(step(*several), UsageError);  // of the other one
  other.reset();
  CHECK_NOTHROW(step(*several));
  several.reset();
}
