// Programs that read batches by a loader.
#include <cstdint>
#include <vector>

#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

Values train_on(Run& run, int world_size, int rank) {
  BodyAndHead model;
  data::Loader loader = loader_of(world_size, rank);
  return train(run, model, loader);
}

const std::vector<Row> kBatchPrograms = {
    {"the loop of the README", kAll, [](Run& run) { return train_on(run, run.size(), run.rank()); }, {}},
    {"world_size and rank forgotten in the loader: all ranks read all of each batch",
     kDdp,
     [](Run& run) { return train_on(run, 1, 0); },
     {.exact = false}},
    {"all ranks skip the same batch",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       data::Loader loader = loader_of(run.size(), run.rank());
       nn::Module& net = run.wrap(model);
       optim::SGD opt(model, {.lr = 0.05f});
       std::int64_t step = 0;
       for (auto& [images, labels] : loader) {
         if (step++ == 1) continue;
         opt.zero_grad();
         ops::nll_loss(net(images), labels).backward();
         opt.step();
       }
       return values_of(model);
     },
     {}},
};

}  // namespace

TEST_CASE("programs that read batches") {
  for (const Row& row : kBatchPrograms) check(row);
}
