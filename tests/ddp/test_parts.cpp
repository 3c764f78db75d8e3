// Parts of a model, and a dropout that runs more than once on a batch, over any number of ranks.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial.h"
#include "dp/data_parallel.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kRows = 20;

/// Which optimizers a training has, and which of them empty the gradients.
enum class Parts { two, head_alone };

/// Whether all ranks found so; each sets its own.
using ByRank = std::array<bool, 8>;

bool all_of(const ByRank& found, int size) { return std::all_of(found.begin(), found.begin() + size, std::identity{}); }

/// Trains with the backbone's batch norm frozen; each batch runs forward twice. Leaves the fingerprint and the last
/// norm of the gradients.
std::pair<std::string, double> train_parts(TwoParts& model, nn::Module& net, Parts parts, int rank, int size) {
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  optimizers.push_back(std::make_unique<optim::SGD>(model.head, optim::SGDOptions{.lr = 0.05f, .momentum = 0.5f}));
  if (parts == Parts::two) {
    optimizers.push_back(std::make_unique<optim::Adam>(model.backbone, optim::AdamOptions{.lr = 0.01f}));
    optimizers.push_back(std::make_unique<optim::AdamW>(model.hidden));
  }
  net.train();
  model.backbone.eval();
  double norm = 0;
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = shard(make_batch(kRows, step), rank, size).to(model.parameters().device());
    for (const auto& one : optimizers) one->zero_grad();
    net(batch.images);
    ops::nll_loss(net(batch.images), batch.labels).backward();
    norm = optim::clip_grad_norm(model.head, 0.5);
    for (const auto& one : optimizers) one->step();
  }
  return {fingerprint(model), norm};
}

std::pair<std::string, double> trained_alone(Parts parts) {
  TwoParts model(kSeed);
  return train_parts(model, model, parts, 0, 1);
}

}  // namespace

TEST_CASE("optimizers and modes of parts leave the same bits on 1, 2, 4 and 8 ranks") {
  for (const Parts parts : {Parts::two, Parts::head_alone}) {
    const auto alone = trained_alone(parts);
    for (const int size : {2, 4, 8}) {
      ByRank same{};
      run_ranks(Over::shm, size, [&](ProcessGroup& group) {
        TwoParts model(kSeed);
        model.to({DeviceKind::cpu, group.rank()});
        DistributedDataParallel net(model, group);
        same[static_cast<std::size_t>(group.rank())] = train_parts(model, net, parts, group.rank(), size) == alone;
      });
      CHECK(all_of(same, size));
    }
  }
}

TEST_CASE("DP inside of DDP trains parts with the bits of one device") {
  const auto alone = trained_alone(Parts::two);
  ByRank same{};
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    const int first = 2 * group.rank();
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, first});
    dp::DataParallel inner(model, {.devices = {{DeviceKind::cpu, first}, {DeviceKind::cpu, first + 1}}});
    DistributedDataParallel net(inner, group);
    same[static_cast<std::size_t>(group.rank())] = train_parts(model, net, Parts::two, group.rank(), 2) == alone;
  });
  CHECK(all_of(same, 2));
}

TEST_CASE("backward adds to a sum over the ranks as it adds to a gradient of one device") {
  const auto train = [](TwoParts& model, nn::Module& net, int rank, int size) {
    std::vector<std::vector<float>> all;
    for (std::int64_t step = 0; step < 3; ++step) {
      const Batch batch = shard(make_batch(kRows, step), rank, size).to(model.parameters().device());
      model.head.zero_grad();
      ops::nll_loss(net(batch.images), batch.labels).backward();
      const Tensor gradients = std::as_const(model.parameters()).gradients();
      all.emplace_back(gradients.span<float>().begin(), gradients.span<float>().end());
    }
    return all;
  };
  TwoParts single(kSeed);
  single.norm.eval();
  const auto alone = train(single, single, 0, 1);
  for (const bool finds_unused : {false, true}) {
    ByRank same{};
    run_ranks(Over::shm, 4, [&](ProcessGroup& group) {
      TwoParts model(kSeed);
      model.to({DeviceKind::cpu, group.rank()});
      model.norm.eval();
      DistributedDataParallel net(model, group, {.find_unused_parameters = finds_unused});
      same[static_cast<std::size_t>(group.rank())] = train(model, net, group.rank(), 4) == alone;
    });
    CHECK(all_of(same, 4));
  }
}

TEST_CASE("a sum over the ranks stays where a backward does not reach it") {
  ByRank stays{};
  run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, group.rank()});
    DistributedDataParallel net(model, group, {.find_unused_parameters = true});
    const Batch batch = shard(make_batch(kRows, 0), group.rank(), 2).to(model.parameters().device());
    ops::nll_loss(net(batch.images), batch.labels).backward();
    const nn::FlatParameters& store = model.parameters();
    const int last = store.slot_count() - 1;
    const float sum = store.gradient(last).span<float>()[0], before = store.gradient(0).span<float>()[0];
    model.backbone.zero_grad();
    const Variable y = net(nn::Value(nn::List{Variable(batch.images)})).variable();
    ops::mse_loss(y, zeros(y.shape(), DType::f32, y.device())).backward();
    stays[static_cast<std::size_t>(group.rank())] =
        store.gradient(last).span<float>()[0] == sum && store.gradient(0).span<float>()[0] != before;
  });
  CHECK(all_of(stays, 2));
}

/// Two backward runs a step, the first of them under no_sync(), of which only the head's gradients are emptied.
std::vector<std::vector<float>> accumulate(TwoParts& model, nn::Module& net, int rank, int size) {
  auto* const ddp_net = dynamic_cast<DistributedDataParallel*>(&net);
  model.norm.eval();
  std::vector<std::vector<float>> all;
  for (std::int64_t step = 0; step < 3; ++step) {
    model.head.zero_grad();
    for (std::int64_t part = 0; part < 2; ++part) {
      const Batch batch = shard(make_batch(kRows, 2 * step + part), rank, size).to(model.parameters().device());
      DistributedDataParallel::NoSync guard;
      if (ddp_net != nullptr && part == 0) guard = ddp_net->no_sync();
      ops::nll_loss(net(batch.images), batch.labels).backward();
    }
    const Tensor gradients = std::as_const(model.parameters()).gradients();
    all.emplace_back(gradients.span<float>().begin(), gradients.span<float>().end());
  }
  return all;
}

TEST_CASE("no_sync() accumulates beside a sum over the ranks that zero_grad() of another part has left") {
  TwoParts single(kSeed);
  const auto alone = accumulate(single, single, 0, 1);
  std::vector<std::vector<std::vector<float>>> got(2);
  run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, group.rank()});
    DistributedDataParallel net(model, group);
    got[static_cast<std::size_t>(group.rank())] = accumulate(model, net, group.rank(), 2);
  });
  CHECK(got[0] == got[1]);
  for (std::size_t step = 0; step < alone.size(); ++step) {
    double worst = 0;
    for (std::size_t i = 0; i < alone[step].size(); ++i)
      worst = std::fmax(worst, std::fabs(double{got[0][step][i]} - double{alone[step][i]}));
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("a loss of own rows follows one of global rows where only a part's gradients were emptied") {
  const auto failures = try_ranks(Over::shm, 2, {}, [](ProcessGroup& group) {
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, group.rank()});
    DistributedDataParallel net(model, group);
    for (const bool stamped : {true, false}) {
      model.head.zero_grad();
      Batch batch = shard(make_batch(kRows, 0), group.rank(), 2).to(model.parameters().device());
      if (!stamped) {
        batch.images.set_stamp({});
        batch.labels.set_stamp({});
      }
      ops::nll_loss(net(batch.images), batch.labels).backward();
    }
  });
  for (const auto& failure : failures) CHECK(text_of(failure) == "");
}

TEST_CASE("average_gradients averages the gradients of the part that it is given") {
  ByRank right{};
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, group.rank()});
    nn::FlatParameters& store = model.parameters();
    for (int slot = 0; slot < store.slot_count(); ++slot) {
      const Tensor gradient = store.gradient(slot);
      std::ranges::fill(gradient.span<float>(), static_cast<float>(group.rank()));
      store.set_filled(slot);
    }
    average_gradients(model.head, group);
    bool all = true;
    for (int slot = 0; slot < store.slot_count(); ++slot) {
      const bool of_head = store.slots()[static_cast<std::size_t>(slot)].name.starts_with("head.");
      all &= store.gradient(slot).span<float>()[0] == (of_head ? 0.5f : static_cast<float>(group.rank()));
    }
    right[static_cast<std::size_t>(group.rank())] = all;
  });
  CHECK(all_of(right, 2));
}
