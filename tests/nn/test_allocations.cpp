// A training step of SimpleCNN allocates nothing once every size has been seen.
#include <sys/prctl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "lib/backend/backend.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/allocations.h"
#include "tests/support/catch2.h"
#include "tests/support/resident.h"
#include "tests/support/sanitizers.h"

using namespace duet;

namespace {

struct CnnTraining {
  explicit CnnTraining(bool fused) {
    model.context().fuse = fused;
    Mt19937 generator(4);
    generator.uniform(images.span<float>(), -1.0, 1.0);
    for (std::int64_t& label : labels.span<std::int64_t>()) label = generator.randint(0, 10);
  }
  void step() {
    images.set_stamp({count, 0, images.size(0)});
    labels.set_stamp({count++, 0, images.size(0)});
    opt.zero_grad();
    const Variable loss = ops::nll_loss(model(images), labels);
    loss.backward();
    opt.step();
  }
  nn::SimpleCNN model{1234};
  optim::SGD opt{model, {.lr = 0.01f, .momentum = 0.5f}};
  Tensor images = empty({16, 1, 28, 28}), labels = empty({16}, DType::i64);
  std::int64_t count = 0;
};

}  // namespace

TEST_CASE("a training step allocates nothing after the second") {
  for (const bool fused : {true, false}) {
    CnnTraining training(fused);
    training.step();
    training.step();
    long own = 0;
    std::string where;
    {
      const duet_test::CountAllocations count;
      for (int i = 0; i < 10; ++i) training.step();
      own = count.own();
      where = count.first_own();
    }
    CAPTURE(fused, where);
    CHECK(own == 0);
  }
}

TEST_CASE("a planted allocation in a step is seen") {
  CnnTraining training(true);
  training.step();
  training.step();
  std::unique_ptr<int> planted;
  const nn::HookHandle hook = training.model.parameters().hooks().on_grad_ready([&](int slot) {
    if (slot == 0) planted = std::make_unique<int>(slot);
  });
  long own = 0;
  {
    const duet_test::CountAllocations count;
    training.step();
    own = count.own();
  }
  CHECK(own == 1);
}

TEST_CASE("an inference allocates nothing after the second") {
  CnnTraining training(true);
  training.model.eval();
  training.model(training.images);
  training.model(training.images);
  long own = 0;
  {
    const duet_test::CountAllocations count;
    training.model(training.images);
    own = count.own();
  }
  CHECK(own == 0);
}

TEST_CASE("the process does not grow over 300 steps") {
#ifdef DUET_SANITIZED
  DUET_SKIP("sanitizers keep freed memory: the growth of the process says nothing");
#endif
  CnnTraining training(true);
  training.images = training.images.rows(0, 4);
  training.labels = training.labels.rows(0, 4);
  for (int i = 0; i < 20; ++i) training.step();
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // else the kernel may at any time put a large page in place of small ones
  const std::int64_t before = duet_test::resident_kib();
  for (int i = 0; i < 300; ++i) training.step();
  // 300 steps that each kept one of the smallest tensors would be more.
  CHECK(duet_test::resident_kib() - before < 256);
}
