// A backward whose model or wrapper is gone.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/autograd/variable.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::nn;
using namespace duet_test;

namespace {

std::vector<float> gradients_of(Module& model) {
  const auto values = std::as_const(model.parameters()).gradients().span<float>();
  return {values.begin(), values.end()};
}

/// A model, what may wrap it, an optimizer, and the loss of a batch. All but the loss go one by one, in any order.
struct Parts {
  std::unique_ptr<SyncNet> model = std::make_unique<SyncNet>(1);
  std::unique_ptr<Module> wrapper;
  std::unique_ptr<optim::SGD> opt =
      std::make_unique<optim::SGD>(*model, optim::SGDOptions{.lr = 0.1f, .momentum = 0.9f});

  Variable loss(const duet_test::Batch& batch) {
    return ops::nll_loss((wrapper ? *wrapper : static_cast<Module&>(*model))(batch.images), batch.labels);
  }
  void destroy(char part) {
    if (part == 'm') model.reset();
    if (part == 'w') wrapper.reset();
    if (part == 'o') opt.reset();
  }
};

constexpr const char* kOrders[] = {"m", "mw", "mo", "mwo", "mow", "wm", "wmo", "wom", "om", "omw", "owm"};

}  // namespace

TEST_CASE("backward after its model is gone is an error, in any order of destruction") {
  for (const int devices : {0, 1, 2})
    for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward})
      for (const std::string order : kOrders) {
        CAPTURE(devices, order);
        Parts parts;
        if (devices > 0)
          parts.wrapper = std::make_unique<dp::DataParallel>(
              *parts.model,
              dp::DataParallelOptions{.devices = first_devices(DeviceKind::cpu, devices), .replicas = refresh});
        parts.loss(make_batch(8, 1)).backward();
        parts.opt->step();
        const Variable loss = parts.loss(make_batch(8, 2));
        for (const char part : order) parts.destroy(part);
        for (int i = 0; i < 2; ++i)
          CHECK_THAT(error_of<UsageError>([&] { loss.backward(); }),
                     ContainsSubstring("the model of ") && ContainsSubstring(" was destroyed before this backward"));
      }
}

TEST_CASE("backward needs neither its DataParallel nor an optimizer") {
  std::vector<std::vector<float>> gradients;
  for (const std::string order : {"", "w", "o", "wo", "ow"}) {
    Parts parts;
    parts.wrapper = std::make_unique<dp::DataParallel>(
        *parts.model, dp::DataParallelOptions{.devices = first_devices(DeviceKind::cpu, 2)});
    const Variable loss = parts.loss(make_batch(8, 1));
    for (const char part : order) parts.destroy(part);
    loss.backward();
    gradients.push_back(gradients_of(*parts.model));
  }
  for (const std::vector<float>& own : gradients) CHECK(own == gradients[0]);
}

TEST_CASE("backward after its DistributedDataParallel is gone is an error, in any order of destruction") {
  for (const int ranks : {1, 2})
    for (const std::string order : {"w", "wo", "ow", "m", "mw", "wm", "mow", "wmo"}) {
      CAPTURE(ranks, order);
      std::vector<std::string> texts(static_cast<std::size_t>(ranks));
      ddp::run_rank_threads(ranks, [&](ddp::ProcessGroup& group) {
        Parts parts;
        parts.wrapper = std::make_unique<ddp::DistributedDataParallel>(*parts.model, group);
        const auto batch_of = [&](std::int64_t step) {
          duet_test::Batch batch =
              make_batch(8, step).rows(8 / group.size() * group.rank(), 8 / group.size() * (group.rank() + 1));
          return batch;
        };
        parts.loss(batch_of(1)).backward();
        parts.opt->step();
        parts.opt->zero_grad();
        const Variable loss = parts.loss(batch_of(2));
        for (const char part : order) parts.destroy(part);
        texts[static_cast<std::size_t>(group.rank())] = error_of<UsageError>([&] { loss.backward(); });
        group.barrier().wait();
      });
      for (const std::string& text : texts)
        CHECK_THAT(text, ContainsSubstring("the model of ") || ContainsSubstring("the DistributedDataParallel of"));
    }
}

TEST_CASE("a tape of replicas that were made again is an error") {
  SyncNet first(1);
  dp::DataParallel net(first, {.devices = first_devices(DeviceKind::cpu, 2)});
  const duet_test::Batch batch = make_batch(8, 1);
  SyncNet other(2);
  const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
  CHECK_THROWS_AS(net.forward(other.context(), Variable(batch.images)), UsageError);
  CHECK_THROWS_AS(loss.backward(), UsageError);
}
