#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "ddp/launch/launch.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

struct WorkerLines {
  std::map<int, std::vector<std::string>> lines;  // of stdout, by rank
  LaunchResult result;
};

/// Runs a scenario of worker.cpp in a process per rank.
WorkerLines lines_of_worker(int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), DUET_DDP_WORKER);
  WorkerLines outcome;
  outcome.result =
      launch({.ranks = ranks, .command = arguments, .on_line = [&](int rank, bool error, std::string_view line) {
                if (!error) outcome.lines[rank].emplace_back(line);
              }});
  return outcome;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("DDP on 2, 4 and 8 ranks gives the bits of one device") {
  for (const int rows : {32, 27, 2}) {  // the second is ragged, the third leaves some ranks without a row
    nn::SimpleCNN single(kSeed);
    train(single, single, rows, 0, 1);
    for (const int size : {2, 4, 8}) {
      if (size == 8 && rows != 27) continue;
      const WorkerLines outcome = lines_of_worker(size, {"train", std::to_string(rows)});
      CHECK(outcome.result.message == "");
      INFO(size << " ranks, " << rows << " rows");
      for (int rank = 0; rank < size; ++rank) CHECK(outcome.lines.at(rank) == Lines{fingerprint(single)});
    }
  }
}

TEST_CASE("DDP on 3 ranks agrees with itself exactly, whatever the buckets") {
  const WorkerLines large = lines_of_worker(3, {"train", "31"});
  const WorkerLines small = lines_of_worker(3, {"train", "31", "1"});
  CHECK(large.lines.at(0).size() == 1);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(large.lines.at(rank) == large.lines.at(0));
    CHECK(small.lines.at(rank) == large.lines.at(0));
  }
}

TEST_CASE("gradients: the tutorial's loop, the mean over rows, PyTorch's rule") {
  // Gradients are 10 on rank 0 and 40 on rank 1.
  for (const char* rule : {"average", "rows", "torch"}) {
    const WorkerLines outcome = lines_of_worker(2, {"gradient", rule});
    for (int rank = 0; rank < 2; ++rank) CHECK(outcome.lines.at(rank) == Lines{"25"});
  }
}

TEST_CASE("no_sync accumulates, and the next backward reduces it all") {
  // PyTorch's example: gradients 1 and 2 on two ranks.
  const WorkerLines outcome = lines_of_worker(2, {"no_sync"});
  CHECK(outcome.lines.at(0) == Lines{"1.5", "2.5", "4.5"});
  CHECK(outcome.lines.at(1) == Lines{"1.5", "3.5", "4.5"});
}

TEST_CASE("ranks with fewer steps join those that go on, and end with their parameters") {
  for (const int size : {1, 2, 4}) {
    float weight = 1;  // its gradient is 2 weight on those that train, divided by all
    for (int training = size; training > 0; --training)
      weight -= 0.25f * 2 * weight * static_cast<float>(training) / static_cast<float>(size);
    const WorkerLines outcome = lines_of_worker(size, {"join"});
    CHECK(outcome.result.message == "");
    for (int rank = 0; rank < size; ++rank) CHECK(outcome.lines.at(rank) == Lines{concat(weight, " ", size)});
  }
}

TEST_CASE("while ranks join, buffers are those of a rank that trains") {
  const WorkerLines outcome = lines_of_worker(2, {"join_buffers"});
  CHECK(outcome.result.message == "");
  for (int rank = 0; rank < 2; ++rank) CHECK(outcome.lines.at(rank) == Lines{"1.084"});  // 4 (1 - 0.9^3)
}

TEST_CASE("parameters that differ are found in the step that compares them, on every rank") {
  const WorkerLines outcome = lines_of_worker(3, {"compare"});
  CHECK_THAT(outcome.result.message, ContainsSubstring("parameters differ from those of rank 0 in step 3, on rank 1"));
}

TEST_CASE("the trace has what backward waits for its buckets, once a step") {
  SoloGroup group;
  nn::Linear model(5, 2);
  DistributedDataParallel net(model, group);
  const std::uint64_t begin = Trace::position();
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    ops::mse_loss(net(zeros({3, 5})), zeros({3, 2})).backward();
  }
  std::vector<TraceEvent> events;
  Trace::read(begin, events);
  REQUIRE(events.size() == 2);
  for (const TraceEvent& event : events) CHECK(event.name == std::string("communication"));
}

TEST_CASE("a parameter without a gradient is named, or counts as zeros") {
  CHECK_THAT(lines_of_worker(2, {"unused", "error"}).result.message,
             ContainsSubstring("without a gradient for unused.weight"));
  const WorkerLines outcome = lines_of_worker(2, {"unused", "allowed"});
  for (int rank = 0; rank < 2; ++rank) CHECK(outcome.lines.at(rank) == Lines{"0"});
}

namespace {

/// One weight is used twice, one is not used unless asked for.
struct Shared : nn::Module {
  Shared() {
    register_module("twice", twice);
    register_module("other", other);
    initialise(3);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable y = twice.forward(context, twice.forward(context, x));
    return uses_other ? other.forward(context, y) : y;
  }
  using nn::Module::forward;
  std::string type_name() const override { return "Shared"; }
  nn::Linear twice{1, 1, false}, other{1, 1, false};
  bool uses_other = false;
};

/// The gradients of the other weight and of the one used twice, after three steps.
std::vector<float> train_static(ProcessGroup& group, const DistributedDataParallelOptions& options, bool changes) {
  const Device device{DeviceKind::cpu, group.rank()};  // threads that compute share none
  Shared model;
  model.to(device);
  DistributedDataParallel net(model, group, options);
  const Tensor x = from_values<float>({1, 1}, {static_cast<float>(group.rank() + 1)}).to(device);
  for (int step = 0; step < 3; ++step) {
    model.parameters().zero_grad();
    model.uses_other = changes && step == 2;
    ops::mse_loss(net(x), zeros({1, 1}, DType::f32, device)).backward();
  }
  const auto first_of = [&](int slot) { return model.parameters().gradient(slot).data<float>()[0]; };
  return {first_of(1), first_of(0)};
}

}  // namespace

TEST_CASE("a static graph has the gradients of the search for unused parameters, and may not change") {
  const DistributedDataParallelOptions options{.bucket_limits = {4}, .static_graph = true};
  std::vector<std::vector<float>> searched(2), known(2);
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    searched[rank] = train_static(group, {.find_unused_parameters = true}, false);
    known[rank] = train_static(group, options, false);
  });
  CHECK(known == searched);
  CHECK(searched[0] == searched[1]);
  CHECK(searched[0][0] == 0.0f);
  CHECK(searched[0][1] != 0.0f);
  for (const auto& failure :
       try_ranks(Over::memory, 2, {}, [&](ProcessGroup& group) { train_static(group, options, true); }))
    CHECK_THAT(text_of(failure), ContainsSubstring("the gradient of other.weight became ready in step 3"));
}

TEST_CASE("a parameter that no rank uses in a step is not updated, as with one device") {
  const auto train = [](ProcessGroup* group) {
    Shared model;
    model.to({DeviceKind::cpu, group != nullptr ? group->rank() : 0});
    std::unique_ptr<DistributedDataParallel> wrapper;
    if (group != nullptr)
      wrapper = std::make_unique<DistributedDataParallel>(
          model, *group, DistributedDataParallelOptions{.find_unused_parameters = true});
    nn::Module& net = wrapper ? static_cast<nn::Module&>(*wrapper) : model;
    const Device device = model.parameters().device();
    optim::AdamW optimizer(model, {.lr = 0.1f, .weight_decay = 0.5});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      model.uses_other = step % 2 == 0;
      ops::mse_loss(net(from_values<float>({1, 1}, {2.0f}).to(device)), zeros({1, 1}, DType::f32, device)).backward();
      optimizer.step();
    }
    CHECK(optimizer.state().back().tensor.span<float>()[0] == 2);  // steps of other.weight
    const auto all = model.parameters().values().span<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  const std::vector<float> alone = train(nullptr);
  run_ranks(Over::shm, 2, [&](ProcessGroup& group) {
    CHECK(train(&group) == alone);
    group.barrier().wait();
  });
}

TEST_CASE("construction gives all ranks the values of rank 0") {
  std::vector<std::vector<float>> results(2);
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    nn::BatchNorm2d model(2);
    const auto value = static_cast<float>(5 + group.rank());
    for (auto& [name, tensor] : model.state_dict()) {
      if (tensor.dtype() == DType::f32)
        for (float& element : tensor.span<float>()) element = value;
    }
    DistributedDataParallel net(model, group);
    std::vector<float>& all = results[static_cast<std::size_t>(group.rank())];
    for (auto& [name, tensor] : model.state_dict()) {
      if (tensor.dtype() == DType::f32)
        for (const float element : tensor.span<float>()) all.push_back(element);
    }
  });
  for (const auto& values : results) CHECK(values == std::vector<float>(8, 5.0f));
}

TEST_CASE("dropout has the seed of rank 0, whatever seed the other ranks drew their weights with") {
  struct Net : nn::Sequential {
    explicit Net(std::uint64_t seed) {
      add<nn::Flatten>();
      add<nn::Dropout>(0.5);
      add<nn::Linear>(784, 10);
      add<nn::LogSoftmax>();
      initialise(seed);
    }
  };
  const auto train = [](nn::Module& model, nn::Module& net, int rank, int size) {
    const Batch batch = shard(make_batch(8, 2), rank, size).to(model.parameters().device());
    ops::nll_loss(net(batch.images), batch.labels).backward();
    const auto all = std::as_const(model.parameters()).gradients().span<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  Net alone(kSeed);
  const std::vector<float> expected = train(alone, alone, 0, 1);
  run_ranks(Over::memory, 2, [&](ProcessGroup& group) {
    Net model(kSeed + static_cast<std::uint64_t>(group.rank()));
    model.to({DeviceKind::cpu, group.rank()});
    DistributedDataParallel net(model, group);
    const bool same = train(model, net, group.rank(), 2) == expected;
    CHECK(same);
  });
}

TEST_CASE("ranks with different models all fail with the difference") {
  const bool other_shape = GENERATE(false, true);
  const auto failures = try_ranks(Over::memory, 3, {}, [&](ProcessGroup& group) {
    const bool odd = group.rank() == 2;
    nn::Linear model(odd && other_shape ? 2 : 3, 1, !odd || other_shape);
    DistributedDataParallel net(model, group);
  });
  for (const auto& failure : failures) {
    if (other_shape)
      CHECK_THAT(text_of(failure),
                 ContainsSubstring("params[0] is weight [1, 3] on rank 0 and weight [1, 2] on rank 2"));
    else
      CHECK_THAT(text_of(failure), ContainsSubstring("Rank 0 has 2 params, while rank 2 has inconsistent 1 params."));
  }
}

TEST_CASE("a module without parameters needs no DDP, and the text shows the wrapper") {
  SoloGroup group;
  nn::Dropout nothing(0.5);
  CHECK_THROWS_AS(DistributedDataParallel(nothing, group), UsageError);
  nn::Linear model(5, 2);
  CHECK_THROWS_WITH(DistributedDataParallel(model, group, {.compare_parameters_every = -3}),
                    "compare_parameters_every is -3, expected 0 or more");
  DistributedDataParallel net(model, group);
  CHECK(net.str() == "DistributedDataParallel(\n  (module): Linear(in_features=5, out_features=2, bias=True)\n)");
  CHECK(net.state_dict()[0].name == "module.weight");
}
