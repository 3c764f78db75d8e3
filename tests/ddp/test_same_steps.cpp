// Ranks that step otherwise than the others: an error that names two of them and what differs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/error.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kSteps = 4;

/// A rank's optimizers, and what it does with them.
struct Updates {
  optim::SGDOptions head{.lr = 0.01f};
  optim::AdamWOptions rest{.lr = 0.002f};
  bool head_by_adam = false, before_wrapper = false, rest_first = false;
  double max_norm = 0;        // 0: no clipping
  std::int64_t halved = -1;   // step before which the head's rate is halved, behind zero_grad()
  std::int64_t skipped = -1;  // step that has no update
};

std::vector<std::unique_ptr<optim::Optimizer>> optimizers_of(TwoParts& model, const Updates& updates) {
  std::vector<std::unique_ptr<optim::Optimizer>> made;
  if (updates.head_by_adam)
    made.push_back(std::make_unique<optim::Adam>(model.head, optim::AdamOptions{.lr = updates.head.lr}));
  else
    made.push_back(std::make_unique<optim::SGD>(model.head, updates.head));
  for (nn::Module* const part : {static_cast<nn::Module*>(&model.backbone), static_cast<nn::Module*>(&model.hidden)})
    made.push_back(std::make_unique<optim::AdamW>(*part, updates.rest));
  if (updates.rest_first) std::ranges::reverse(made);
  return made;
}

void train(ProcessGroup& group, const Updates& updates, bool stamped, const DistributedDataParallelOptions& options) {
  TwoParts model(kSeed);
  model.to({DeviceKind::cpu, group.rank()});
  auto optimizers = optimizers_of(model, updates);
  DistributedDataParallel net(model, group, options);
  if (!updates.before_wrapper) optimizers = optimizers_of(model, updates);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Batch batch = shard(make_batch(12, step), group.rank(), group.size()).to(model.parameters().device());
    if (!stamped) batch = {batch.images.set_stamp({}), batch.labels.set_stamp({})};
    net.zero_grad();
    if (updates.halved == step) optimizers[0]->set_lr(optimizers[0]->lr() / 2);
    ops::nll_loss(net(batch.images), batch.labels).backward();
    if (updates.max_norm > 0) optim::clip_grad_norm(model, updates.max_norm);
    if (updates.skipped == step) continue;
    for (const auto& one : optimizers) one->step();
  }
}

/// What rank 0 of three says, of which rank 1 updates by `of_rank_1`; "different texts" where the others say another.
std::string said(Over over, const Updates& others, const Updates& of_rank_1, bool stamped,
                 const DistributedDataParallelOptions& options = {}) {
  const auto failures = try_ranks(over, 3, {}, [&](ProcessGroup& group) {
    train(group, group.rank() == 1 ? of_rank_1 : others, stamped, options);
  });
  const auto cause = [&](std::size_t rank) {  // behind "... failed on rank 1: "
    const std::string text = text_of(failures[rank]);
    return text.substr(std::min(text.size(), text.find("the ")));
  };
  return cause(0) == cause(1) && cause(0) == cause(2) ? cause(0) : "different texts";
}

using Change = void (*)(Updates&);
struct Row {
  const char *what, *value, *expected;
  Change of_rank_1;
  Change of_all = [](Updates&) {};
};

const Row kUnlike[] = {
    {"learning rate", "0.02", "0.01", [](Updates& u) { u.head.lr = 0.02f; }},
    {"learning rate", "0.01000001", "0.00999999978", [](Updates& u) { u.head.lr = 0.01000001f; }},
    {"momentum", "0.9", "0", [](Updates& u) { u.head.momentum = 0.9f; }},
    {"weight decay", "0.0001", "0", [](Updates& u) { u.head.weight_decay = 1e-4f; }},
    {"beta2", "0.99", "0.999", [](Updates& u) { u.rest.beta2 = 0.99; }},
    {"eps, or an optimizer after the second,", "different", "the same", [](Updates& u) { u.rest.eps = 1e-6; }},
    {"optimizer", "Adam", "SGD", [](Updates& u) { u.head_by_adam = true; }},
    {"clip norm", "2", "0.5", [](Updates& u) { u.max_norm = 2; }, [](Updates& u) { u.max_norm = 0.5; }},
    {"clip norm", "0", "0.5", [](Updates& u) { u.max_norm = 0; }, [](Updates& u) { u.max_norm = 0.5; }},
    {"learning rate", "0.3", "0.01", [](Updates& u) { u.head.lr = 0.3f, u.before_wrapper = true; }},
    {"learning rate", "0.005", "0.01", [](Updates& u) { u.halved = 1; }, [](Updates& u) { u.halved = 2; }},
    {"number of updates between reductions", "0", "3", [](Updates& u) { u.skipped = 1; }},
};

/// One rank's loop over batches of its own.
struct Loop {
  TwoParts& model;
  DistributedDataParallel& net;
  optim::SGD& opt;
  int rank;
  Variable loss(std::int64_t step) const {
    const Batch batch = rows_of({4, 4}, rank, step, false).to(model.parameters().device());
    return ops::nll_loss(net(batch.images), batch.labels);
  }
  /// A step of so many batches.
  void accumulate(std::int64_t batches) const {
    opt.zero_grad();
    auto guard = net.no_sync();
    for (std::int64_t i = 0; i < batches; ++i) {
      if (i + 1 == batches) guard = {};
      loss(i).backward();
    }
    opt.step();
  }
};

std::string said_of(const std::function<void(const Loop&)>& body, DistributedDataParallelOptions options = {}) {
  options.broadcast_buffers = false;
  const auto failures = try_ranks(Over::shm, 2, {}, [&](ProcessGroup& group) {
    TwoParts model(kSeed);
    model.to({DeviceKind::cpu, group.rank()});
    DistributedDataParallel net(model, group, options);
    optim::SGD opt(model, {.lr = 0.01f});
    body({model, net, opt, group.rank()});
  });
  std::string text;
  for (const auto& failure : failures)
    if (text.empty()) text = text_of(failure);
  return text;
}

}  // namespace

TEST_CASE("ranks that update by unlike settings are named, over every backend, with stamped batches and without") {
  const Over backends[] = {Over::memory, Over::shm, Over::tcp};
  for (std::size_t i = 0; i < std::size(kUnlike); ++i) {
    const auto& [what, value, expected, of_rank_1, of_all] = kUnlike[i];
    const Over over = backends[i % 3];
    Updates others, other;
    of_all(others);
    of_rank_1(other);
    for (const bool stamped : {false, true}) {
      CHECK(said(over, others, others, stamped) == "");
      CHECK_THAT(
          said(over, others, other, stamped),
          ContainsSubstring(concat("the ", what, " of rank 1 is ", value, ", expected ", expected, " as on rank 0")));
      CHECK(said(over, others, other, stamped, {.local_steps = true}) == "");
    }
  }
  CHECK(said(Over::shm, {}, {.rest_first = true}, true) == "");
}

TEST_CASE("ranks that skip, repeat or accumulate batches of their own otherwise are named") {
  const auto skips = [](bool zero_grad_first, bool alike) {
    return [=](const Loop& loop) {
      for (std::int64_t step = 0; step < kSteps; ++step) {
        if (zero_grad_first) loop.opt.zero_grad();
        const Variable loss = loop.loss(step);
        if (step == (alike ? 1 : loop.rank)) continue;
        loss.backward();
        loop.opt.step();
        if (!zero_grad_first) loop.opt.zero_grad();
      }
    };
  };
  for (const auto rule : {GradientRule::rows, GradientRule::torch})
    for (const bool first : {false, true}) {
      CHECK(said_of(skips(first, true), {.rule = rule}) == "");
      CHECK_THAT(said_of(skips(first, false), {.rule = rule}),
                 ContainsSubstring("forwards between reductions of rank 1 is 1, expected 2 as on rank 0: skip"));
    }
  const auto repeats = [](const Loop& loop) {
    for (int i = 0; i <= loop.rank; ++i) loop.loss(0).backward();
    loop.opt.step();
    loop.accumulate(1);
  };
  CHECK_THAT(said_of(repeats), ContainsSubstring("updates between reductions of rank 1 is 0, expected 1 as on rank 0"));
  CHECK_THAT(said_of([](const Loop& loop) { loop.accumulate(2 + loop.rank); }),
             ContainsSubstring("gradients of rank 1 are of 3 accumulated batches, expected 2 as on rank 0"));
  CHECK(said_of([](const Loop& loop) { loop.accumulate(2 + loop.rank); }, {.local_steps = true}) == "");
  CHECK(said_of([](const Loop& loop) { loop.accumulate(3); }) == "");
}

TEST_CASE("step() refuses gradients that only one rank has, unless ranks take local steps") {
  const auto refused = ContainsSubstring("is that of rank 0 alone, expected the sum over the ranks: run the last");
  const auto local = [](const Loop& loop) {
    {
      const auto guard = loop.net.no_sync();
      loop.opt.set_lr(0.1f / static_cast<float>(1 + loop.rank));
      for (std::int64_t step = 0; step <= loop.rank; ++step) {
        loop.loss(step).backward();
        loop.opt.step();
      }
    }
    loop.accumulate(1);
  };
  CHECK_THAT(said_of(local), refused);
  CHECK(said_of(local, {.local_steps = true}) == "");
  CHECK_THAT(said_of([](const Loop& loop) {
               loop.loss(0).backward();
               const auto guard = loop.net.no_sync();
               loop.loss(1).backward();  // on top of the sum
               loop.opt.step();
             }),
             refused);
}

TEST_CASE("ranks that share out the update, and those that have ended a join(), go on together") {
  for (const int ranks : {1, 2}) {
    const auto share_out = [ranks](const Loop& loop) {
      nn::FlatParameters& store = loop.model.parameters();
      optim::SGD head(loop.model.head, {.lr = 0.1f}), backbone(loop.model.backbone, {.lr = 0.1f});
      for (std::int64_t step = 0; step < kSteps; ++step) {
        loop.net.zero_grad();
        loop.loss(step).backward();
        if (loop.rank == 0) head.step();
        if (loop.rank == ranks - 1) backbone.step();
        for (int slot = 0; slot < store.slot_count(); ++slot) {
          const bool of_head = store.slots()[static_cast<std::size_t>(slot)].name.starts_with("head.");
          loop.net.group().broadcast(store.value(slot), of_head ? 0 : ranks - 1).wait();
        }
      }
    };
    CHECK(said_of(share_out) == "");
  }
  CHECK(said_of([](const Loop& loop) {
          loop.net.join([&] {
            for (int step = 0; step <= loop.rank; ++step) {
              loop.opt.set_lr(0.1f / static_cast<float>(1 + step));
              loop.accumulate(1);
            }
          });
          loop.opt.set_lr(0.1f);
          for (int step = 0; step < 2; ++step) loop.accumulate(1);
        }) == "");
}
