// Networks on several devices: bits, and DataParallel around a part of one.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/nn/alexnet_vgg.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/resnet.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/precision.h"

using namespace duet;
using namespace duet::nn;
using namespace duet_test;

namespace {

/// A little ResNet with synchronised batch norms, and log-probabilities.
struct SyncResNet : Sequential {
  SyncResNet(ResNet::Block block, Stem stem, std::int64_t width = 8) {
    const NetworkOptions options{
        .classes = 10, .in_channels = 1, .width = width, .stem = stem, .sync_batch_norm = true};
    add<ResNet>(block, std::array<int, 4>{1, 1, 1, 1}, options);
    add<LogSoftmax>();
    initialise(kSeed);
  }
};

void check_bits(ResNet::Block block, Stem stem, std::int64_t width = 8) {
  constexpr std::int64_t kRows = 13;
  SyncResNet single(block, stem, width);
  train(single, single, kRows, 0, 1);
  const std::string expected = state_of(single);
  for (const int devices : {1, 2, 4, 8}) {
    CAPTURE(devices);
    SyncResNet model(block, stem, width);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices)});
    train(model, net, kRows, 0, 1);
    CHECK(state_of(model) == expected);
    std::vector<std::string> states(static_cast<std::size_t>(devices));
    ddp::run_rank_threads(devices, [&](ddp::ProcessGroup& group) {
      SyncResNet own(block, stem, width);
      ddp::DistributedDataParallel wrapped(own, group);
      train(own, wrapped, kRows, group.rank(), group.size());
      states[static_cast<std::size_t>(group.rank())] = state_of(own);
    });
    for (const std::string& state : states) CHECK(state == expected);
  }
}

const NetworkOptions kNarrow{.classes = 3, .width = 4};

/// Two steps of AlexNet, its features on `devices`; 0: without a wrapper.
std::string train_features(int devices) {
  AlexNet model(kNarrow);
  if (devices > 0)
    model.wrap_features(std::make_unique<dp::DataParallel>(
        model.features(), dp::DataParallelOptions{.devices = first_devices(DeviceKind::cpu, devices)}));
  model.initialise(kSeed);
  optim::SGD optimizer(model, {.lr = 0.1f});
  for (std::int64_t step = 0; step < 2; ++step) {
    Tensor x = empty({8, 3, 63, 63});
    Mt19937(static_cast<std::uint64_t>(step)).uniform(x.span<float>(), -2, 2);
    Tensor labels = from_values<std::int64_t>({8}, {0, 1, 2, 0, 1, 2, 0, 1});
    x.set_stamp({step, 0, 8});
    labels.set_stamp({step, 0, 8});
    optimizer.zero_grad();
    ops::nll_loss(ops::log_softmax(model(x)), labels).backward();
    optimizer.step();
  }
  return fingerprint(model);
}

}  // namespace

TEST_CASE("a ResNet of bottlenecks has the same bits on 1, 2, 4 and 8 devices, in DP and DDP") {
  check_bits(ResNet::Block::bottleneck, Stem::imagenet);
}

TEST_CASE("under bf16 a ResNet has the same bits on 1, 2, 4 and 8 devices, in DP and DDP") {
  if (!machine_has_bf16()) DUET_SKIP("this machine has no instructions for bf16");
  const WithCpuPrecision set(Precision::bf16);
  check_bits(ResNet::Block::basic, Stem::imagenet, 16);
  CHECK(backend(DeviceKind::cpu).has_used_precision());
}

TEST_CASE("AlexNet's features on several devices have the bits of one") {
  const std::string expected = train_features(0);
  for (const int devices : {1, 2, 4, 8}) CHECK(train_features(devices) == expected);
}

TEST_CASE("wrapped features are named and printed as PyTorch's, and load states with and without the wrapper") {
  AlexNet plain(kNarrow), wrapped(kNarrow);
  wrapped.wrap_features(std::make_unique<dp::DataParallel>(wrapped.features(), dp::DataParallelOptions{}));
  CHECK_THAT(wrapped.str(), ContainsSubstring("(features): DataParallel(\n    (module): Sequential(\n"));
  CHECK(wrapped.state_dict()[0].name == "features.module.0.weight");
  CHECK(wrapped.state_dict().back().name == "classifier.6.bias");
  plain.initialise(std::uint64_t{5});
  CHECK(fingerprint(wrapped) != fingerprint(plain));
  wrapped.load_state_dict(plain.state_dict());
  CHECK(fingerprint(wrapped) == fingerprint(plain));
  wrapped.initialise(std::uint64_t{6});
  plain.load_state_dict(wrapped.state_dict());
  CHECK(fingerprint(wrapped) == fingerprint(plain));
}

TEST_CASE("only a wrapper of the features takes their place, once and before there are values") {
  AlexNet model(kNarrow), other(kNarrow), wrapped(kNarrow);
  wrapped.wrap_features(std::make_unique<dp::DataParallel>(wrapped.features(), dp::DataParallelOptions{}));
  CHECK_THROWS_WITH(
      wrapped.wrap_features(std::make_unique<dp::DataParallel>(wrapped.features(), dp::DataParallelOptions{})),
      ContainsSubstring("wrapped already"));
  CHECK_THROWS_AS(model.wrap_features(nullptr), UsageError);
  CHECK_THROWS_WITH(model.wrap_features(std::make_unique<Linear>(2, 2)),
                    "module 'features' of AlexNet gives its place to a wrapper of it only, got Linear");
  CHECK_THROWS_AS(model.wrap_features(std::make_unique<dp::DataParallel>(other.features(), dp::DataParallelOptions{})),
                  UsageError);
  model.initialise(kSeed);
  CHECK_THROWS_WITH(
      model.wrap_features(std::make_unique<dp::DataParallel>(model.features(), dp::DataParallelOptions{})),
      "module 'features' of AlexNet is wrapped after the values of its model were made");
}
