// Batches and losses that do not come from duet's loader and operators: gradients are those of the mean over all rows.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial.h"
#include "dp/data_parallel.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/own_loss.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

TEST_CASE("DDP on tensors without a stamp has the gradients of the mean over all ranks' rows") {
  for (const RankRows& rows :
       {RankRows{16, 16}, RankRows{5, 5, 5}, RankRows{16, 7}, RankRows{1, 9, 4}, RankRows{0, 3}}) {
    CAPTURE(rows);
    check_all_close(after_a_step<Plain>(rows, library_loss, false), alone<Plain>(rows, library_loss));
  }
}

TEST_CASE("DDP with a loss of the user's own has the gradients of the mean over all ranks' rows, stamped or not") {
  for (const RankRows& rows : {RankRows{16, 16}, RankRows{16, 7}, RankRows{1, 9, 4}}) {
    CAPTURE(rows);
    for (const bool stamped : {false, true})
      check_all_close(after_a_step<Plain>(rows, users_loss, stamped), alone<Plain>(rows, users_loss));
  }
}

TEST_CASE("ranks with whole batches of their own, as a loader per rank stamps them, end with the mean over all rows") {
  const RankRows rows = {6, 10};
  const auto got = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
    Batch batch = rows_of(rows, rank, 0, false).to(device);
    const std::int64_t own = batch.images.size(0);
    batch.images.set_stamp({.step = 4, .first = 0, .global = own});
    batch.labels.set_stamp({.step = 4, .first = 0, .global = own});
    ops::nll_loss(net(batch.images), batch.labels).backward();
  });
  check_all_close(got, alone<Plain>(rows, library_loss));
}

TEST_CASE("no_sync weights what has accumulated by the rows") {
  const RankRows rows = {16, 7};
  const auto train = [&](const Loss& loss, bool stamped) {
    return of_ranks<Plain>(2, [&, loss, stamped](DistributedDataParallel& net, int rank, Device device) {
      const auto backward = [&](std::int64_t step) {
        const Batch batch = rows_of(rows, rank, step, stamped).to(device);
        loss(net(batch.images), batch.labels).backward();
      };
      {
        const auto guard = net.no_sync();
        backward(0);
      }
      backward(1);
    });
  };
  check_all_close(train(library_loss, false), alone<Plain>(rows, library_loss, 2));
  check_all_close(train(library_loss, true), alone<Plain>(rows, library_loss, 2));
  check_all_close(train(users_loss, true), alone<Plain>(rows, users_loss, 2));
}

TEST_CASE("batches of several sizes accumulate where all ranks have the same ones, and are refused where not") {
  const auto accumulate = [](DistributedDataParallel& net, int rank, Device device,
                             const std::vector<RankRows>& steps) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const Batch batch = rows_of(steps[step], rank, static_cast<std::int64_t>(step), false).to(device);
      const auto backward = [&] { own_loss(net(batch.images)).backward(); };
      if (step + 1 == steps.size()) return backward();
      const auto guard = net.no_sync();
      backward();
    }
  };
  const auto same = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
    accumulate(net, rank, device, {{8, 8}, {3, 3}});
  });
  Plain model(kSeed);
  for (std::int64_t step = 0; step < 2; ++step) {
    const Batch batch = rows_of({step == 0 ? 16 : 6}, 0, step, false);
    own_loss(model(batch.images)).backward();
  }
  check_all_close(same, gradients_of(model));
  CHECK_THAT(failure_of(2,
                        [&](DistributedDataParallel& net, int rank, Device device) {
                          accumulate(net, rank, device, {{8, 8}, {8, 3}});
                        }),
             ContainsSubstring("gradients of batches of several sizes have accumulated on rank 1"));
}

TEST_CASE("gradients that were reduced stay as they are when another backward adds to them") {
  const RankRows rows = {16, 7};
  const auto got = of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
    for (std::int64_t step = 0; step < 2; ++step) {
      const Batch batch = rows_of(rows, rank, step, false).to(device);
      ops::nll_loss(net(batch.images), batch.labels).backward();
    }
  });
  check_all_close(got, alone<Plain>(rows, library_loss, 2));
}

TEST_CASE("within join() the mean is over the rows of the ranks that train") {
  const RankRows rows = {16, 7, 5};
  const auto got = of_ranks<Plain>(3, [&](DistributedDataParallel& net, int rank, Device device) {
    net.join([&] {
      for (std::int64_t step = 0; step < (rank == 0 ? 1 : 2); ++step) {
        net.zero_grad();
        const Batch batch = rows_of(rows, rank, step, false).to(device);
        ops::nll_loss(net(batch.images), batch.labels).backward();
      }
    });
  });
  Plain model(kSeed);
  Batch rest = make_batch(28, 1).rows(16, 28);
  rest.images.set_stamp({});
  rest.labels.set_stamp({});
  ops::nll_loss(model(rest.images), rest.labels).backward();
  for (const Values& of_rank : got) check_close(of_rank, gradients_of(model));
}

TEST_CASE("a synchronised batch norm has the gradients of the mean over all rows, without a stamp too") {
  for (const RankRows& rows : {RankRows{16, 16}, RankRows{16, 7}, RankRows{1, 9, 4}}) {
    CAPTURE(rows);
    check_all_close(after_a_step<SyncNet>(rows, library_loss, false), alone<SyncNet>(rows, library_loss));
    check_all_close(after_a_step<SyncNet>(rows, users_loss, true), alone<SyncNet>(rows, users_loss));
  }
}

TEST_CASE("with a batch norm per rank, ranks' gradients are weighted by their rows") {
  using Net = NormNet<nn::BatchNorm2d>;
  const RankRows rows = {16, 8};
  Values expected;
  for (int rank = 0; rank < 2; ++rank) {
    Net model(kSeed);
    const Batch batch = rows_of(rows, rank, 0, false);
    ops::nll_loss(model(batch.images), batch.labels).backward();
    const Values own = gradients_of(model);
    expected.resize(own.size(), 0.0f);
    for (std::size_t i = 0; i < own.size(); ++i)
      expected[i] += own[i] * static_cast<float>(rows[static_cast<std::size_t>(rank)]) / 24.0f;
  }
  check_all_close(after_a_step<Net>(rows, library_loss, false), expected);
}

TEST_CASE("losses of both kinds in one sum, or in accumulated gradients, are refused by every rank") {
  const RankRows rows = {8, 8};
  const auto sum = [&](DistributedDataParallel& net, int rank, Device device) {
    const Batch batch = rows_of(rows, rank, 0, true).to(device);
    const Variable output = net(batch.images);
    ops::add(ops::nll_loss(output, batch.labels), own_loss(output)).backward();
  };
  CHECK_THAT(failure_of(2, sum),
             ContainsSubstring("divided by the rows of the global batch, another one by this rank"));
  const auto accumulated = [&](DistributedDataParallel& net, int rank, Device device) {
    for (const bool stamped : {false, true}) {
      const Batch batch = rows_of(rows, rank, 0, stamped).to(device);
      const auto guard = net.no_sync();
      ops::nll_loss(net(batch.images), batch.labels).backward();
    }
  };
  CHECK_THAT(failure_of(2, accumulated), ContainsSubstring("divided by the rows of the global batch, another one"));
  const auto by_rank = [&](DistributedDataParallel& net, int rank, Device device) {
    net.join([&] {
      const Batch batch = rows_of(rows, rank, 0, rank == 1).to(device);
      ops::nll_loss(net(batch.images), batch.labels).backward();
    });
  };
  CHECK_THAT(failure_of(2, by_rank), ContainsSubstring("divided by the rows of the global batch, on rank 1"));
}

TEST_CASE("a loss divided by the global rows and a division by the number of ranks exclude each other") {
  const auto stamped_step = [](DistributedDataParallel& net, int rank, Device device) {
    const Batch batch = rows_of({8, 8}, rank, 0, true).to(device);
    ops::nll_loss(net(batch.images), batch.labels).backward();
  };
  CHECK_THAT(failure_of(2, stamped_step, {.rule = GradientRule::torch}),
             ContainsSubstring("was divided by the rows of the global batch already"));
  for (const auto& failure : try_ranks(Over::memory, 2, {}, [](ProcessGroup& group) {
         const Device device{DeviceKind::cpu, group.rank()};
         Plain model(kSeed);
         model.to(device);
         const Batch batch = rows_of({8, 8}, group.rank(), 0, true).to(device);
         ops::nll_loss(model(batch.images), batch.labels).backward();
         average_gradients(model, group);
       }))
    CHECK_THAT(text_of(failure), ContainsSubstring("divided by the rows of the global batch already"));
}

TEST_CASE("a batch that a sampler cut for another number of ranks is refused") {
  const auto step = [](DistributedDataParallel& net, int rank, Device device) {
    Batch batch = rows_of({8, 8}, rank, 0, true).to(device);
    duet::Rows stamp = batch.images.stamp();
    stamp.shards = 4;
    batch.images.set_stamp(stamp);
    net(batch.images);
  };
  CHECK_THAT(failure_of(2, step), ContainsSubstring("the batch is one of 4 shards, but the group has 2 ranks"));
}

TEST_CASE("DP inside of DDP keeps to the ranks' rows") {
  const RankRows rows = {16, 6};
  for (const bool in_replica : {false, true}) {
    for (const Loss& loss : {Loss(library_loss), Loss(users_loss)}) {
      std::vector<Values> got(2);
      run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
        const std::vector<Device> devices = {{DeviceKind::cpu, 2 * group.rank()},
                                             {DeviceKind::cpu, 2 * group.rank() + 1}};
        Plain model(kSeed);
        model.to(devices[0]);
        dp::DataParallelOptions options{.devices = devices};
        if (in_replica) options.loss = loss;
        dp::DataParallel inner(model, options);
        DistributedDataParallel net(inner, group);
        const Batch batch = rows_of(rows, group.rank(), 0, false).to(devices[0]);
        const Variable images(batch.images), labels(batch.labels);
        const Variable value =
            in_replica ? net(nn::Value(nn::List{images, labels})).variable() : loss(net(batch.images), batch.labels);
        value.backward();
        got[static_cast<std::size_t>(group.rank())] = gradients_of(model);
      });
      check_all_close(got, alone<Plain>(rows, loss));
    }
  }
}
