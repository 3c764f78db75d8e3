// What optimizers leave after a training by ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/nn/simple_cnn.h"
#include "lib/optim/adam.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kUnlikeRows = 27;  // blocks of unlike sizes

/// The parameters' hash, and the bits of the optimizer's buffers.
struct Left {
  std::string values;
  std::vector<std::vector<float>> state;
  bool operator==(const Left&) const = default;
};

using MakeOptimizer = std::unique_ptr<optim::Optimizer> (*)(nn::Module& model);

const MakeOptimizer kOptimizers[] = {
    [](nn::Module& model) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.05f, .weight_decay = 0.1f});
    },
    [](nn::Module& model) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<optim::SGD>(
          model, optim::SGDOptions{.lr = 0.05f, .momentum = 0.9f, .dampening = 0.25f, .weight_decay = 0.1f});
    },
    [](nn::Module& model) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<optim::SGD>(
          model, optim::SGDOptions{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true});
    },
    [](nn::Module& model) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<optim::AdamW>(model, optim::AdamWOptions{.lr = 0.01f, .weight_decay = 0.1});
    }};

/// What all ranks have in the end, which must be the same.
Left trained(int size, MakeOptimizer make_optimizer) {
  std::vector<Left> all(static_cast<std::size_t>(size));
  run_ranks(size == 1 ? Over::memory : Over::shm, size, [&](ProcessGroup& group) {
    nn::LinearClassifier model(kSeed);
    DistributedDataParallel net(model, group);
    const auto optimizer = make_optimizer(model);
    for (std::int64_t step = 0; step < 4; ++step) {
      const Batch batch = shard(make_batch(kUnlikeRows, step), group.rank(), size);
      optimizer->zero_grad();
      ops::nll_loss(net(batch.images), batch.labels).backward();
      optimizer->step();
    }
    Left& left = all[static_cast<std::size_t>(group.rank())];
    left.values = fingerprint(model);
    for (const NamedTensor& buffer : optimizer->state())
      left.state.emplace_back(buffer.tensor.span<float>().begin(), buffer.tensor.span<float>().end());
  });
  for (const Left& one : all) CHECK(one == all[0]);
  return all[0];
}

}  // namespace

TEST_CASE("SGD and AdamW leave the same bits, also in their state, for 1, 2, 4, 8 ranks") {
  for (const MakeOptimizer make_optimizer : kOptimizers) {
    const Left alone = trained(1, make_optimizer);
    CHECK(alone.state.empty() == (make_optimizer == kOptimizers[0]));
    for (const int size : {2, 4, 8}) {
      CAPTURE(size);
      CHECK(trained(size, make_optimizer) == alone);
    }
  }
}
