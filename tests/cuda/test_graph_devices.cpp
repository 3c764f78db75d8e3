// Steps of DataParallel over several devices that are recorded and replayed as one CUDA graph.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/step_graph.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/clip_grad_norm.h"
#include "tests/cuda/small_cnn.h"
#include "tests/cuda/training.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet_test;

namespace {

std::unique_ptr<nn::Module> norm() { return std::make_unique<NormNet<nn::BatchNorm2d>>(7); }

Variable nll(const Variable& output, const Tensor& target) { return ops::nll_loss(output, target); }

std::vector<std::size_t> used_by(const std::vector<Device>& devices) {
  std::vector<std::size_t> used;
  for (const Device device : devices) used.push_back(backend(DeviceKind::cuda).use(device).used);
  return used;
}

/// One training with plain steps, and one with recorded ones.
struct Pair {
  Pair(std::unique_ptr<nn::Module> (*model)(), std::int64_t images, const dp::DataParallelOptions& options)
      : plain(model(), images, 4, false, options), recorded(model(), images, 4, true, options) {}

  /// So many epochs have the same losses and end with the same bits on all devices.
  void check_epochs(int count) {
    for (int epoch = 0; epoch < count; ++epoch) {
      const float expected = plain.epoch();
      CHECK(recorded.epoch() == expected);
      CHECK(same_values(recorded, plain));
      CHECK_NOTHROW(recorded.parallel().require_same_replicas());
    }
  }

  Training plain, recorded;
};

}  // namespace

DUET_CUDA_TEST("cuda: recorded steps of DataParallel train the very bits of plain ones") {
  for (const int count : {2, 3, 4}) {
    // The last batch has 2 rows: fewer than there are devices.
    for (const bool logical : {true, false}) {
      const std::vector<Device> devices = logical ? logical_devices(count) : some_devices(count);
      CAPTURE(count, devices[1].str());
      const bool in_replica = (count == 3) == logical;
      dp::DataParallelOptions options{.devices = devices};
      options.replicas = logical ? dp::Refresh::persistent : dp::Refresh::per_forward;
      if (in_replica) options.loss = nll;
      Pair pair(count == 4 ? linear : cnn, 6, options);
      pair.check_epochs(4);
      CHECK(pair.recorded.graph().recordings() == 2);
      CHECK(pair.recorded.graph().replays() == 6);
    }
  }
}

DUET_CUDA_TEST("cuda: several steps of DataParallel in one graph, with distinct GPUs' persistent replicas") {
  Pair pair(cnn, 16, {.devices = some_devices(2)});
  pair.recorded.set_several(2);
  pair.check_epochs(3);
  CHECK(pair.recorded.graph().recordings() == 1);
  CHECK(pair.recorded.graph().replays() == 8);
}

DUET_CUDA_TEST("cuda: batch norms of replicas count the batches of recorded steps") {
  Pair pair(norm, 8, {.devices = some_devices(2)});
  pair.check_epochs(3);
  for (Training* const training : {&pair.plain, &pair.recorded}) {
    const nn::NamedTensor count = training->model().state_dict()[6];
    CHECK(count.name == "norm.num_batches_tracked");
    CHECK(*count.tensor.to(Device{}).data<std::int64_t>() == 6);
  }
}

DUET_CUDA_TEST("cuda: a hundred replays of DataParallel take no memory, and a dropped recording returns its own") {
  const std::vector<Device> devices = some_devices(3);
  Training plain(linear(), 40, 4, false, {.devices = devices});
  for (int epoch = 0; epoch < 11; ++epoch) plain.epoch();
  auto recorded = std::make_unique<Training>(linear(), 40, 4, true, dp::DataParallelOptions{.devices = devices});
  recorded->epoch();
  const std::vector<std::size_t> used = used_by(devices);
  for (int epoch = 1; epoch < 11; ++epoch) recorded->epoch();
  CHECK(recorded->graph().replays() == 108);
  CHECK(used_by(devices) == used);
  CHECK(same_values(*recorded, plain));
  StepRecorder& recorder = *backend(DeviceKind::cuda).recorder(devices[0]);
  const std::vector<std::size_t> before = used_by(devices);
  recorder.begin(0, 1, std::span(devices).subspan(1));
  for (const Device device : devices) empty({5000}, DType::f32, device);
  recorder.drop(recorder.end());
  CHECK(used_by(devices) == before);
}

DUET_CUDA_TEST("cuda: what fails in a recording of several devices leaves all of them usable") {
  const std::vector<Device> devices = some_devices(3);
  Backend& cuda = backend(DeviceKind::cuda);
  // In the last device's thread, or in the first one's after all have worked.
  const auto throws = [](const Variable&) { throw DataError("the replica's own failure"); };
  const auto reads = [](const Variable& output) { output.value().to(Device{}); };
  const auto waits = [&](const Variable& output) { cuda.synchronize(output.device()); };
  const auto leaves = [](const Variable& output) { output.value().to({DeviceKind::cuda, 0, 9}); };
  struct Case {
    std::function<void(const Variable&)> spoil;
    const char* message;
  };
  const Case cases[] = {{throws, "the replica's own failure"},
                        {reads, "cannot be part of a recorded step"},
                        {waits, "cuda: "},  // another replica may be the first to notice
                        {leaves, "are not parts of one recording"}};
  const Case* now = nullptr;
  const auto loss = [&](const Variable& output, const Tensor& target) {
    if (now != nullptr && output.device() == devices.back()) now->spoil(output);
    return ops::nll_loss(output, target);
  };
  Pair pair(cnn, 12, {.devices = devices, .loss = loss});
  pair.plain.epoch();
  Training& recorded = pair.recorded;
  const Case* next = std::begin(cases);
  for (auto at = recorded.loader().begin(); at != recorded.loader().end(); ++at) {
    const auto run = [&] { recorded.graph().run(recorded.key(), [&] { return recorded.step(); }); };
    recorded.loader().stage(1);
    while (recorded.loader().stamp().step == 2 && next != std::end(cases)) {
      now = next++;
      CAPTURE(now->message);
      CHECK_THROWS_WITH(run(), ContainsSubstring(now->message));
      now = nullptr;
    }
    run();
  }
  CHECK(recorded.graph().recordings() == 1);
  CHECK(same_values(recorded, pair.plain));
  recorded.graph().take_loss_sum();
  pair.check_epochs(1);
}

DUET_CUDA_TEST("cuda: gradients that the host clips are refused in a recording of several devices") {
  Training recorded(linear(), 12, 4, true, {.devices = some_devices(2)});
  const auto clipped = [&] {
    const Tensor loss = recorded.step();
    optim::clip_grad_norm(recorded.model(), 0.01);
    return loss;
  };
  int steps = 0;
  for (auto at = recorded.loader().begin(); at != recorded.loader().end(); ++at, ++steps) {
    const auto run = [&] { recorded.graph().run(recorded.key(), clipped); };
    recorded.loader().stage(1);
    if (steps < 2) run();
    if (steps == 2) CHECK_THROWS_WITH(run(), ContainsSubstring("a copy to the host on"));
  }
}

DUET_CUDA_TEST("cuda: values written between replays reach all replicas; a replaced optimizer's state is an error") {
  Pair pair(cnn, 8, {.devices = some_devices(2)});
  for (int epoch = 0; epoch < 3; ++epoch) {
    pair.check_epochs(1);
    for (Training* const training : {&pair.plain, &pair.recorded}) {
      nn::SimpleCNN other(static_cast<std::uint64_t>(epoch), kSmall);
      training->model().load_state_dict(other.state_dict());
    }
  }
  pair.check_epochs(1);
  CHECK(pair.recorded.graph().recordings() == 1);
  Training& recorded = pair.recorded;
  recorded.optimizer().load_state(pair.plain.optimizer().state());
  CHECK_THROWS_WITH(recorded.epoch(), ContainsSubstring("state was replaced after the step was recorded"));
}

DUET_CUDA_TEST("cuda: replays count the bytes that they copy between devices as plain steps do") {
  const std::vector<Device> devices = some_devices(2);
  Pair pair(linear, 12, {.devices = devices});
  std::uint64_t moved[2] = {};
  for (Training* const training : {&pair.plain, &pair.recorded}) {
    training->epoch();
    const std::uint64_t before = backend(DeviceKind::cuda).use(devices[1]).moved;
    training->epoch();
    moved[training == &pair.recorded] = backend(DeviceKind::cuda).use(devices[1]).moved - before;
  }
  CHECK(moved[0] > 0);
  CHECK(moved[1] == moved[0]);
}

DUET_CUDA_TEST("cuda: a label out of bounds in any replica is reported when the losses of replays are read") {
  const std::vector<Device> devices = some_devices(2);
  std::vector<Tensor> x, labels;
  for (const Device device : devices) {
    x.push_back(zeros({2, 3}, DType::f32, device));
    labels.push_back(label_tensor({0, 2}).to(device));
  }
  StepGraph graph(devices);
  const auto run = [&](std::int64_t step) {
    graph.run({.rows = 4, .stamp = {step, 0, 4}}, [&] {
      ops::nll_loss(Variable(x[1]), labels[1]);
      return ops::nll_loss(Variable(x[0]), labels[0]).value();
    });
  };
  for (std::int64_t step = 0; step < 4; ++step) run(step);
  CHECK(graph.take_loss_sum() == 0);
  copy(label_tensor({0, 3}), labels[1]);
  run(4);
  CHECK_THROWS_WITH(graph.take_loss_sum(), ContainsSubstring("Target 3 is out of bounds"));
}

DUET_CUDA_TEST("cuda: a device that is not part of a recording, and one that is part of another, are refused") {
  const std::vector<Device> devices = logical_devices(3);
  Backend& cuda = backend(DeviceKind::cuda);
  StepRecorder &first = *cuda.recorder(devices[0]), &second = *cuda.recorder(devices[1]);
  const std::span<const Device> others = std::span(devices).subspan(1);
  const Tensor x = zeros({4}, DType::f32, devices[0]);
  first.begin(0);
  CHECK_THROWS_WITH(x.to(devices[1]), ContainsSubstring("are not parts of one recording"));
  CHECK_THROWS_WITH(second.begin(0), ContainsSubstring("this thread is recording a step already"));
  first.cancel();
  first.begin(0, 1, others);
  CHECK(second.recording() == first.recording());
  CHECK_THROWS_WITH(second.begin(0), ContainsSubstring("is recording a step already"));
  CHECK_THROWS_WITH(second.end(), ContainsSubstring("is not recording a step"));
  second.cancel();  // is the first one's to do
  CHECK(second.recording() != 0);
  first.drop(first.end());
  CHECK(second.recording() == 0);
  CHECK_THROWS_WITH(first.begin(0, 1, std::span(devices)), ContainsSubstring("names cuda:0.0 twice"));
  CHECK(as_array(x.to(devices[1])).values == std::vector<double>(4, 0));
}
