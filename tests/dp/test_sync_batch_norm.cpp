#include <string>

#include "dp/data_parallel.h"
#include "lib/error.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet_test;

namespace {

/// In replica 1, throws or skips the sum over the batch.
struct Odd : nn::Module {
  explicit Odd(bool throws) : throws_(throws) { register_module("norm", norm_); }
  Variable forward(nn::Context& context, const Variable& x) const override {
    if (x.device().index != 1) return norm_.forward(context, x);
    require<DataError>(!throws_, "bad row");
    return x;
  }
  using Module::forward;
  std::string type_name() const override { return "Odd"; }
  nn::SyncBatchNorm norm_{1};
  bool throws_;
};

}  // namespace

TEST_CASE("a replica that fails does not leave the others waiting in a batch norm") {
  for (const bool throws : {true, false}) {
    Odd model(throws);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 3)});
    const std::string expected = throws ? "replica 1 on device cpu:1: bad row" : "but another one has ended";
    for (int turn = 0; turn < 3; ++turn)
      CHECK_THROWS_WITH(net(zeros({6, 1, 2, 2})), duet_test::ContainsSubstring(expected));
  }
}

TEST_CASE("evaluation needs no statistics of the batch, on any number of devices") {
  SyncNet model(kSeed);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 4)});
  model.eval();
  CHECK(net(zeros({1, 1, 28, 28})).shape() == Shape{1, 10});
}
