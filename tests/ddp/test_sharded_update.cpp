#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/nn/simple_cnn.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kRows = 27;  // blocks of unlike sizes

/// What a training leaves: the parameters' hash, and the bits of the optimizer's buffers.
struct Left {
  std::string values;
  std::vector<std::vector<float>> state;
  bool operator==(const Left&) const = default;
};

Left left_by(nn::Module& model, const optim::Optimizer& optimizer) {
  Left left{.values = fingerprint(model), .state = {}};
  for (const NamedTensor& buffer : optimizer.state())
    left.state.emplace_back(buffer.tensor.span<float>().begin(), buffer.tensor.span<float>().end());
  return left;
}

/// One rank as a thread, with a device of its own.
struct Rank {
  Rank(ProcessGroup& the_group, UpdateKind update, const optim::SGDOptions& rule, GradientRule the_gradients)
      : group(the_group),
        gradients(the_gradients),
        device{DeviceKind::cpu, the_group.rank()},
        model(kSeed),
        optimizer(on_device(), rule) {
    if (group.size() > 1)
      net = std::make_unique<DistributedDataParallel>(
          model, group,
          DistributedDataParallelOptions{.rule = the_gradients, .find_unused_parameters = true, .update = update});
  }
  nn::Module& on_device() {
    model.to(device);
    model.context().seed = kSeed;
    return model;
  }
  Variable loss(std::int64_t step) {
    Batch batch = shard(make_batch(kRows, step), group.rank(), group.size()).to(device);
    if (gradients == GradientRule::torch) {
      batch.images.set_stamp({});
      batch.labels.set_stamp({});
    }
    return ops::nll_loss(net ? (*net)(batch.images) : model(batch.images), batch.labels);
  }
  void train(std::int64_t first, std::int64_t end) {
    for (std::int64_t step = first; step < end; ++step) {
      optimizer.zero_grad();
      loss(step).backward();
      optimizer.step();
    }
  }

  ProcessGroup& group;
  GradientRule gradients;
  Device device;
  nn::LinearClassifier model;
  optim::SGD optimizer;
  std::unique_ptr<DistributedDataParallel> net;
};

/// What all ranks have in the end, which must be the same.
template <class Body>
Left common_of(int size, Body body) {
  std::vector<Left> all(static_cast<std::size_t>(size));
  run_ranks(size == 1 ? Over::memory : Over::shm, size, [&](ProcessGroup& group) {
    all[static_cast<std::size_t>(group.rank())] = body(group);
    group.barrier().wait();  // the others' state may lie in what they have in common
  });
  for (const Left& one : all) CHECK(one == all[0]);
  return all[0];
}

Left trained(int size, UpdateKind update, const optim::SGDOptions& rule, GradientRule gradients = GradientRule::rows) {
  return common_of(size, [&](ProcessGroup& group) {
    Rank rank(group, update, rule, gradients);
    rank.train(0, 4);
    return left_by(rank.model, rank.optimizer);
  });
}

const optim::SGDOptions kRules[] = {
    {.lr = 0.05f},
    {.lr = 0.05f, .momentum = 0.5f},
    {.lr = 0.05f, .weight_decay = 0.1f},
    {.lr = 0.05f, .momentum = 0.9f, .dampening = 0.25f, .weight_decay = 0.1f},
    {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true},
};

/// Two layers, of which one may be wrapped alone.
struct Layers : nn::Module {
  Layers() {
    register_module("first", first);
    register_module("second", second);
    initialise(kSeed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return second.forward(context, first.forward(context, x));
  }
  using nn::Module::forward;
  std::string type_name() const override { return "Layers"; }
  nn::Linear first{3, 3}, second{3, 3};
};

/// What rank 0 throws, each rank having gone through `body`.
std::string refusal(const std::function<void(Rank&)>& body) {
  const auto failures = try_ranks(Over::shm, 2, {.timeout = std::chrono::seconds(60)}, [&](ProcessGroup& group) {
    Rank rank(group, UpdateKind::sharded, kRules[1], GradientRule::rows);
    body(rank);
  });
  return text_of(failures[0]);
}

}  // namespace

TEST_CASE("a sharded update has the bits of one by every rank, and for 1, 2, 4, 8 ranks of one device") {
  for (const optim::SGDOptions& rule : kRules) {
    const Left alone = trained(1, UpdateKind::replicated, rule);
    CHECK(alone.state.empty() == (rule.momentum == 0));
    for (const int size : {2, 3, 4, 5, 6, 7, 8}) {
      INFO(size << " ranks, momentum " << rule.momentum << ", weight decay " << rule.weight_decay);
      const Left sharded = trained(size, UpdateKind::sharded, rule);
      CHECK(sharded == trained(size, UpdateKind::replicated, rule));
      if ((size & (size - 1)) == 0) CHECK(sharded == alone);
    }
  }
}

TEST_CASE("with PyTorch's rule too, ranks that share out the update end with the bits of those that do not") {
  CHECK(trained(3, UpdateKind::sharded, kRules[1], GradientRule::torch) ==
        trained(3, UpdateKind::replicated, kRules[1], GradientRule::torch));
}

TEST_CASE("a training with sharded updates goes on from the state of any other, and any other from its") {
  const optim::SGDOptions rule = kRules[3];
  const Left whole = trained(2, UpdateKind::replicated, rule);
  for (const auto& [before, after] :
       {std::pair(UpdateKind::sharded, UpdateKind::sharded), std::pair(UpdateKind::sharded, UpdateKind::replicated),
        std::pair(UpdateKind::replicated, UpdateKind::sharded)}) {
    // In the same optimizer, and in a new one.
    CHECK(whole == common_of(2, [&, first = before, second = after](ProcessGroup& group) {
            Rank rank(group, first, rule, GradientRule::rows);
            rank.train(0, 2);
            rank.net.reset();
            rank.net = std::make_unique<DistributedDataParallel>(rank.model, group,
                                                                 DistributedDataParallelOptions{.update = second});
            rank.train(2, 4);
            return left_by(rank.model, rank.optimizer);
          }));
    CHECK(whole == common_of(2, [&, first = before, second = after](ProcessGroup& group) {
            Rank early(group, first, rule, GradientRule::rows);
            early.train(0, 2);
            Rank late(group, second, rule, GradientRule::rows);
            late.train(7, 8);  // its own state is replaced
            late.model.load_state_dict(early.model.state_dict());
            late.optimizer.load_state(early.optimizer.state());
            late.train(2, 4);
            return left_by(late.model, late.optimizer);
          }));
  }
}

TEST_CASE("Adam leaves the same bits for 1, 2, 4, 8 ranks, with a sharded update too") {
  const auto trained_by_adam = [](int size, UpdateKind update) {
    return common_of(size, [&](ProcessGroup& group) {
      Rank rank(group, update, kRules[0], GradientRule::rows);
      optim::AdamW adam(rank.model, {.lr = 0.01f, .weight_decay = 0.1});
      for (std::int64_t step = 0; step < 4; ++step) {
        adam.zero_grad();
        rank.loss(step).backward();
        adam.step();
      }
      return left_by(rank.model, adam);
    });
  };
  const Left alone = trained_by_adam(1, UpdateKind::replicated);
  CHECK(alone.state.size() == 6);  // exp_avg, exp_avg_sq and step of two parameters
  for (const int size : {2, 4, 8})
    for (const UpdateKind update : {UpdateKind::replicated, UpdateKind::sharded}) {
      CAPTURE(size, update == UpdateKind::sharded);
      CHECK(trained_by_adam(size, update) == alone);
    }
}

TEST_CASE("a sharded update starts a parameter's momentum at its own first step") {
  const auto from_half_a_state = [](UpdateKind update) {
    return common_of(2, [&](ProcessGroup& group) {
      Rank rank(group, update, kRules[3], GradientRule::rows);
      rank.train(0, 1);
      std::vector<NamedTensor> state = rank.optimizer.state();
      state.pop_back();
      for (NamedTensor& one : state) one.tensor = one.tensor.clone();
      group.barrier().wait();
      rank.optimizer.load_state(state);
      rank.train(1, 3);
      return left_by(rank.model, rank.optimizer);
    });
  };
  CHECK(from_half_a_state(UpdateKind::sharded) == from_half_a_state(UpdateKind::replicated));
}

TEST_CASE("a sharded update takes what no_sync() has accumulated") {
  const auto accumulated = [](UpdateKind update) {
    return common_of(2, [&](ProcessGroup& group) {
      Rank rank(group, update, kRules[1], GradientRule::rows);
      for (std::int64_t step = 0; step < 4; step += 2) {
        rank.optimizer.zero_grad();
        {
          const auto guard = rank.net->no_sync();
          rank.loss(step).backward();
        }
        rank.loss(step + 1).backward();
        rank.optimizer.step();
      }
      rank.optimizer.zero_grad();
      rank.optimizer.step();  // without gradients it does nothing
      return left_by(rank.model, rank.optimizer);
    });
  };
  CHECK(accumulated(UpdateKind::sharded) == accumulated(UpdateKind::replicated));
}

TEST_CASE("what would differ from an update by every rank is refused where it is asked for") {
  const auto backward = [](Rank& rank) { rank.loss(0).backward(); };
  // Reading gradients.
  CHECK_THAT(refusal([&](Rank& rank) {
               backward(rank);
               optim::clip_grad_norm(rank.model, 1);
             }),
             ContainsSubstring("the gradients are this rank's own"));
  CHECK_THAT(refusal([&](Rank& rank) {
               backward(rank);
               rank.optimizer.step();
               std::as_const(rank.model.parameters()).gradients();
             }),
             ContainsSubstring("the gradients are this rank's own"));
  // A second update with the same gradients, and one with those that no rank has synchronised.
  CHECK_THAT(refusal([&](Rank& rank) {
               backward(rank);
               rank.optimizer.step();
               rank.optimizer.step();
             }),
             ContainsSubstring("before each there is a backward() that synchronises"));
  CHECK_THAT(refusal([&](Rank& rank) {
               const auto guard = rank.net->no_sync();
               backward(rank);
               rank.optimizer.step();
             }),
             ContainsSubstring("before each there is a backward() that synchronises"));
  // Adding to gradients that are to be summed.
  CHECK_THAT(refusal([&](Rank& rank) {
               backward(rank);
               const auto guard = rank.net->no_sync();
               backward(rank);
             }),
             ContainsSubstring("call zero_grad()"));
  CHECK_THAT(refusal([&](Rank& rank) { rank.net->join([&] { rank.train(0, 1); }); }),
             ContainsSubstring("join() with a sharded update"));
}

TEST_CASE("under PyTorch's rule a second backward without zero_grad is refused: it would be scaled twice") {
  for (const auto& failure : try_ranks(Over::shm, 2, {}, [](ProcessGroup& group) {
         Rank rank(group, UpdateKind::sharded, kRules[1], GradientRule::torch);
         rank.loss(0).backward();
         rank.loss(1).backward();
       }))
    CHECK_THAT(text_of(failure), ContainsSubstring("call zero_grad()"));
}

TEST_CASE("ranks that would update by different rules all fail") {
  const auto failures = try_ranks(Over::shm, 3, {}, [](ProcessGroup& group) {
    Rank rank(group, UpdateKind::sharded, kRules[1], GradientRule::rows);
    rank.train(0, 1);
    if (group.rank() == 1) rank.optimizer.set_lr(0.06f);
    rank.train(1, 2);
  });
  for (const auto& failure : failures) {
    CHECK_THAT(text_of(failure), ContainsSubstring("ranks 0, 2 call reduce_update of 7852 f32 (sum) by rule "));
    CHECK_THAT(text_of(failure), ContainsSubstring("rank 1 calls reduce_update of 7852 f32 (sum) by rule "));
  }
}

TEST_CASE("a sharded update is refused at construction where it cannot be had") {
  struct NoHook final : CommHook {
    Work start(ProcessGroup&, const GradBucket&) override { return {}; }
    void finish(ProcessGroup&, const GradBucket&) override {}
  };
  const auto construct = [](ProcessGroup& group, bool part, const std::shared_ptr<CommHook>& hook) {
    Layers model;
    const DistributedDataParallel net(part ? static_cast<nn::Module&>(model.first) : model, group,
                                      {.comm_hook = hook, .update = UpdateKind::sharded});
  };
  for (const auto& failure :
       try_ranks(Over::memory, 2, {}, [&](ProcessGroup& group) { construct(group, false, nullptr); }))
    CHECK_THAT(text_of(failure), ContainsSubstring("needs ranks on CPU devices that share memory (backend shm), got "
                                                   "ranks on CPU devices over memory"));
  for (const auto& failure :
       try_ranks(Over::shm, 2, {}, [&](ProcessGroup& group) { construct(group, false, std::make_shared<NoHook>()); }))
    CHECK_THAT(text_of(failure), ContainsSubstring("it takes no comm_hook"));
  for (const auto& failure : try_ranks(Over::shm, 2, {}, [&](ProcessGroup& group) { construct(group, true, nullptr); }))
    CHECK_THAT(text_of(failure), ContainsSubstring("is for a whole model of 4 parameters, got a module with 2"));
}

TEST_CASE("after an update that lost a rank no other takes the parameters for whole") {
  const auto failures = try_ranks(Over::shm, 2, {.timeout = std::chrono::seconds(60)}, [](ProcessGroup& group) {
    Rank rank(group, UpdateKind::sharded, kRules[1], GradientRule::rows);
    rank.train(0, 1);
    rank.optimizer.zero_grad();
    rank.loss(1).backward();
    if (group.rank() == 1) throw DataError("gone");
    CHECK_THROWS_AS(rank.optimizer.step(), CommError);
    CHECK_THROWS_WITH(rank.model.state_dict(), ContainsSubstring("the last update failed on the way"));
    CHECK_THROWS_WITH(rank.optimizer.state(), ContainsSubstring("the last update failed on the way"));
  });
  CHECK(text_of(failures[0]) == "");
}
