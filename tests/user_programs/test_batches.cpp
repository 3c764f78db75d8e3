// Programs that read batches: loaders that disagree with the mode or with each other, batches of one's own.
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

Values train_on(Run& run, const Reading& reading) {
  BodyAndHead model;
  data::Loader loader = loader_of(reading);
  return train(run, model, loader);
}

Program reading_with(void (*change)(Reading& reading, int rank)) {
  return [change](Run& run) {
    Reading reading = reading_of(run);
    change(reading, run.rank());
    return train_on(run, reading);
  };
}

/// One step on all rows of batches 0 and 1, in one tensor, stamped by `stamp`.
Values step_on_both(Run& run, const std::optional<duet::Rows>& stamp) {
  Batch both = make_batch(16, 0);
  both.images.set_stamp(stamp.value_or(duet::Rows{}));
  both.labels.set_stamp(stamp.value_or(duet::Rows{}));
  if (run.size() > 1) both = both.rows(8 * run.rank(), 8 * run.rank() + 8);
  BodyAndHead model;
  model.context().seed = kSeed;
  model.eval();  // without a stamp ranks count their rows from 0, and dropout with them
  nn::Module& net = run.wrap(model);
  ops::nll_loss(net(both.images), both.labels).backward();
  return gradients_of(model);
}

const std::vector<Row> kBatchPrograms = {
    {"the loop of the README", kAll, [](Run& run) { return train_on(run, reading_of(run)); }, {}},
    {"world_size = 2 left in the loader of one process",
     {Mode::alone, Mode::dp},
     reading_with([](Reading& reading, int) { reading.world_size = 2; }),
     {.error = "a sampler divided this batch among several ranks"}},
    {"rank forgotten in the loader",
     kDdp,
     reading_with([](Reading& reading, int) { reading.rank = 0; }),
     {.error = "the ranks disagree"}},
    {"world_size and rank forgotten in the loader: all ranks read all of each batch",
     kDdp,
     reading_with([](Reading& reading, int) { reading.rank = 0, reading.world_size = 1; }),
     {.exact = false}},
    {"another global_batch on a rank",
     kDdp,
     reading_with([](Reading& reading, int rank) { reading.global_batch = 8 - rank; }),
     {.error = "the ranks disagree"}},
    {"another data set on a rank, of one sample less",
     kDdp,
     reading_with([](Reading& reading, int rank) { reading.samples = 40 - rank; }),
     {.error = "the ranks disagree"}},
    {"a sampler seeded by rank",
     kDdp,
     reading_with([](Reading& reading, int rank) { reading.seed += static_cast<std::uint64_t>(rank); }),
     {.error = "the ranks disagree"}},
    {"each rank skips another batch",
     kDdp,
     [](Run& run) {
       BodyAndHead model;
       data::Loader loader = loader_of(reading_of(run));
       nn::Module& net = run.wrap(model);
       std::int64_t step = 0;
       for (auto& [images, labels] : loader)
         if (step++ != run.rank()) {
           net.zero_grad();
           ops::nll_loss(net(images), labels).backward();
         }
       return values_of(model);
     },
     {.error = "the ranks disagree"}},
    {"all ranks skip the same batch",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       data::Loader loader = loader_of(reading_of(run));
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
    {"a loop over a loader in a loop over the same",
     kAll,
     [](Run& run) {
       BodyAndHead model;
       data::Loader loader = loader_of(reading_of(run));
       nn::Module& net = run.wrap(model);
       for (std::int64_t epoch = 0; auto& outer : loader)
         for (auto& [images, labels] : loader)
           if (outer.images.defined() && epoch++ < 20) {
             net.zero_grad();
             ops::nll_loss(net(images), labels).backward();
           }
       return values_of(model);
     },
     {.error = "loader"}},
    {"a stamp on more rows than its batch has",
     {Mode::alone, Mode::dp},
     [](Run& run) { return step_on_both(run, duet::Rows{.step = 0, .first = 0, .global = 8}); },
     {.error = "rows has the stamp of rows"}},
    {"tensors of one's own, without a stamp", kAll, [](Run& run) { return step_on_both(run, {}); }, {.exact = false}},
};

}  // namespace

TEST_CASE("programs that read batches") {
  for (const Row& row : kBatchPrograms) check(row);
}
