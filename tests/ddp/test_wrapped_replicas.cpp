// Ranks of which each has several devices: DistributedDataParallel over DataParallel.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/error.h"
#include "lib/nn/simple_cnn.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

template <class Net>
std::string trained_alone(std::int64_t rows) {
  Net model(kSeed);
  train(model, model, rows, 0, 1);
  return state_of(model);
}

/// What every rank has in the end.
template <class Net>
std::vector<std::string> trained(int ranks, int devices, std::int64_t rows) {
  std::vector<std::string> states(static_cast<std::size_t>(ranks));
  run_rank_threads(ranks, [&](ProcessGroup& group) {
    Net model(kSeed);
    dp::DataParallel replicas(model, {.devices = first_devices(DeviceKind::cpu, devices)});
    DistributedDataParallel net(replicas, group);
    train(model, net, rows, group.rank(), ranks);
    states[static_cast<std::size_t>(group.rank())] = state_of(model);
  });
  return states;
}

/// Throws in the second replica, if asked to.
struct Fails : nn::Module {
  explicit Fails(bool throws) : throws_(throws) {
    register_module("norm", norm_);
    initialise(kSeed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    require<DataError>(!throws_ || x.device().index == 0, "bad row");
    return norm_.forward(context, x);
  }
  using Module::forward;
  std::string type_name() const override { return "Fails"; }
  nn::SyncBatchNorm norm_{1};
  bool throws_;
};

}  // namespace

TEST_CASE("a synchronised batch norm weights ranks of several devices by their rows") {
  for (const RankRows& rows : {RankRows{8, 8}, RankRows{6, 10}, RankRows{9, 4}}) {
    CAPTURE(rows);
    std::vector<Values> gradients(2);
    run_rank_threads(2, [&](ProcessGroup& group) {
      SyncNet model(kSeed);
      dp::DataParallel replicas(model, {.devices = first_devices(DeviceKind::cpu, 2)});
      DistributedDataParallel net(replicas, group);
      const Batch batch = rows_of(rows, group.rank(), 0, false);
      library_loss(net(batch.images), batch.labels).backward();
      gradients[static_cast<std::size_t>(group.rank())] = gradients_of(model);
    });
    check_all_close(gradients, alone<SyncNet>(rows, library_loss));
  }
}

TEST_CASE("a replica that fails before a batch norm ends the other replicas and ranks") {
  const auto failures = try_ranks(Over::shm, 2, {.timeout = std::chrono::seconds(60)}, [](ProcessGroup& group) {
    Fails model(group.rank() == 1);
    dp::DataParallel replicas(model, {.devices = first_devices(DeviceKind::cpu, 2)});
    DistributedDataParallel net(replicas, group);
    net(zeros({4, 1, 2, 2}));
  });
  CHECK(text_of(failures[1]) == "replica 1 on device cpu:1: bad row");
  CHECK_THAT(text_of(failures[0]), ContainsSubstring("all_reduce #"));
}

TEST_CASE("ranks x devices, with a synchronised batch norm and without, end with the bits of one device") {
  for (const std::int64_t rows : {32, 27, 5}) {
    const std::string sync = trained_alone<SyncNet>(rows), plain = trained_alone<nn::SimpleCNN>(rows);
    CHECK(trained_alone<NormNet<nn::BatchNorm2d>>(rows) == sync);
    CHECK(trained<NormNet<nn::BatchNorm2d>>(1, 2, rows)[0] != sync);
    for (const auto& [ranks, devices] :
         {std::pair(1, 2), std::pair(1, 4), std::pair(2, 1), std::pair(2, 2), std::pair(2, 4), std::pair(4, 1),
          std::pair(4, 2), std::pair(8, 1), std::pair(1, 8)}) {
      CAPTURE(rows, ranks, devices);
      CHECK(trained<SyncNet>(ranks, devices, rows) == std::vector<std::string>(static_cast<std::size_t>(ranks), sync));
      CHECK(trained<nn::SimpleCNN>(ranks, devices, rows) ==
            std::vector<std::string>(static_cast<std::size_t>(ranks), plain));
    }
  }
}

TEST_CASE("threads train models of their own on one device at the same time") {
  const std::string single = trained_alone<nn::SimpleCNN>(32);
  for (int round = 0; round < 10; ++round) {    // sharing scratch memory showed in the first
    nn::SimpleCNN first(kSeed), second(kSeed);  // made on this thread, trained on others
    std::thread one([&] { train(first, first, 32, 0, 1); });
    std::thread other([&] { train(second, second, 32, 0, 1); });
    one.join();
    other.join();
    REQUIRE(state_of(first) == single);
    REQUIRE(state_of(second) == single);
  }
}
