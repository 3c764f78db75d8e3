// The number of launches of a training step, counted by the simulated device: on a GPU every launch costs its gap.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/backend/step_graph.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/small_cnn.h"
#include "tests/support/catch2.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

namespace {

/// All calls that `work` makes, as text: "5 kernels, 2 cublasSgemm".
std::string calls_of(const std::function<void()>& work) {
  duet_sim::take_calls();
  work();
  std::map<std::string, long> calls = duet_sim::take_calls();
  std::string text = concat(std::exchange(calls["cudaLaunchKernelEx"], 0), " kernels");
  for (const auto& [function, times] : calls)
    if (times > 0) text += concat(", ", times, " ", function);
  return text;
}

/// How many.
long count_calls(const std::function<void()>& work) {
  duet_sim::take_calls();
  work();
  long count = 0;
  for (const auto& [function, times] : duet_sim::take_calls()) count += times;
  return count;
}

/// Of two GPUs by turns, so that two devices are two GPUs.
std::vector<Device> devices_of_two(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({DeviceKind::cuda, 4 + i % 2, i / 2});
  return devices;
}

struct CountedTraining {
  explicit CountedTraining(bool fused) {
    model.context().fuse = fused;
    model.to(kOne);
    opt = std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.05f, .momentum = 0.5f});
  }
  void forward() {
    images.set_stamp({step++, 0, 4});
    opt->zero_grad();
    loss = ops::nll_loss(model(images), labels);
  }
  Tensor whole_step() {
    forward();
    loss.backward();
    opt->step();
    return loss.value();
  }
  nn::SimpleCNN model{7};
  std::unique_ptr<optim::SGD> opt;
  Tensor images = zeros({4, 1, 28, 28}, DType::f32, kOne), labels = zeros({4}, DType::i64, kOne);
  Variable loss;
  std::int64_t step = 0;
};

}  // namespace

TEST_CASE("simulated: a training step of SimpleCNN is 12 own kernels and 6 calls of libraries") {
  CountedTraining training(true);
  for (int i = 0; i < 2; ++i) training.whole_step();
  const std::string forward = "1 cublasSgemm, 1 cudnnConvolutionForward";
  const std::string backward = "2 cublasSgemm, 1 cudnnConvolutionBackwardData, 1 cudnnConvolutionBackwardFilter";
  CHECK(calls_of([&] { training.forward(); }) == "5 kernels, " + forward);
  CHECK(calls_of([&] { training.loss.backward(); }) == "6 kernels, " + backward);
  CHECK(calls_of([&] { training.opt->step(); }) == "1 kernels");
  const std::string reading = calls_of([&] { training.loss.item(); });  // waits once
  CHECK_THAT(reading, ContainsSubstring("1 cudaEventSynchronize") && !ContainsSubstring("cudaStreamSynchronize"));
  // A start gradient other than 1 costs a kernel.
  const Tensor two = from_values<float>({}, {2}).to(kOne);
  for (int i = 0; i < 2; ++i) {
    training.forward();
    const std::string calls = calls_of([&] { training.loss.backward(two); });
    if (i == 1) CHECK(calls == "7 kernels, " + backward);  // the first allocated memory
  }
}

TEST_CASE("simulated: convolutions are timed once per shape and process, and not at all where they are deterministic") {
  Backend& cuda = backend(DeviceKind::cuda);
  cuda.set_precision(Precision::tf32);  // by which an algorithm has two kinds of arithmetic
  const auto convolutions = [&](Device device, std::int64_t height) {
    const Tensor x = zeros({1, 2, height, 5}, DType::f32, device), w = zeros({3, 2, 2, 2}, DType::f32, device);
    const Tensor y = empty({1, 3, height - 1, 4}, DType::f32, device);
    duet_sim::take_calls();
    cuda.conv2d_forward(x, w, {}, y, {2, 2, 1, 1, 0, 0});
    cuda.synchronize(device);
    return duet_sim::take_calls()["cudnnConvolutionForward"];
  };
  CHECK(convolutions(kOne, 11) == 9);  // of each kind one run to load the kernels, three timed ones; and the result's
  CHECK(convolutions(kOne, 11) == 1);
  CHECK(convolutions({DeviceKind::cuda, 2}, 11) == 1);  // so that replicas have the same bits
  cuda.set_deterministic(true);
  CHECK(convolutions(kOne, 12) == 1);
  cuda.set_deterministic(false);
  cuda.set_precision(Precision::fp32);
}

TEST_CASE("simulated: a recorded step computes gradients of weights beside those of data") {
  CountedTraining training(true);
  for (int i = 0; i < 2; ++i) training.whole_step();
  StepRecorder& recorder = *backend(DeviceKind::cuda).recorder(kOne);
  training.forward();
  recorder.begin(static_cast<std::uint64_t>(training.step - 1));
  training.forward();
  // Two branches, of conv2 and of fc1: each begins and ends with an event for which the other waits.
  CHECK(calls_of([&] { training.loss.backward(); }).find("4 cudaStreamWaitEvent") != std::string::npos);
  recorder.drop(recorder.end());
}

TEST_CASE("simulated: replaying a recorded step is one launch") {
  CountedTraining training(true);
  StepGraph graph(kOne);
  const auto replay = [&] {
    graph.run({.rows = 4, .stamp = {training.step, 0, 4}, .lr = 0.05f}, [&] { return training.whole_step(); });
  };
  for (int i = 0; i < 3; ++i) replay();
  CHECK(calls_of(replay) == "0 kernels, 1 cudaGraphLaunch");
  CHECK(graph.replays() == 2);
}

TEST_CASE("simulated: a step of DataParallel takes so many calls, a replay of it two streams' events and one launch") {
  struct Case {
    int devices;
    long plain, replayed;
  };
  for (const auto& [count, plain, replayed] : {Case{1, 18, 1}, Case{2, 66, 5}, Case{4, 148, 11}, Case{8, 312, 23}}) {
    const std::vector<Device> devices = devices_of_two(count);
    nn::SimpleCNN model(7, kSmall);
    model.to(devices[0]);
    dp::DataParallel net(model, {.devices = devices});
    optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
    Tensor images = zeros({16, 1, 28, 28}, DType::f32, devices[0]);
    const Tensor labels = zeros({16}, DType::i64, devices[0]);
    std::int64_t number = 0;
    const auto step = [&] {
      images.set_stamp({number++, 0, 16});
      opt.zero_grad();
      const Variable loss = ops::nll_loss(net(images), labels);
      loss.backward();
      opt.step();
      return loss.value();
    };
    CAPTURE(count);
    for (int i = 0; i < 3; ++i) step();
    CHECK(count_calls(step) == plain);
    StepGraph graph(devices);
    const auto run = [&] { graph.run({.rows = 16, .stamp = {number, 0, 16}}, step); };
    for (int i = 0; i < 3; ++i) run();
    // Each other device's stream is waited for, and all wait for the first one's afterwards.
    CHECK(count_calls([&] { run(), ++number; }) == replayed);
  }
}
