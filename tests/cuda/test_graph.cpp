// Steps that are recorded and replayed as CUDA graphs.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/backend/step_graph.h"
#include "lib/ops/losses.h"
#include "tests/cuda/small_cnn.h"
#include "tests/cuda/training.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Other work between the steps, on memory of the sizes that they use.
void disturb(Training&) {
  for (const Shape& shape : {Shape{4, 1, 28, 28}, Shape{4, 128}, Shape{4, 10}, Shape{4}, Shape{}}) {
    const Tensor other = empty(shape, DType::f32, kGpu);
    backend(other).fill(other, NAN);
  }
}

/// Epochs of recorded steps, with other work between them, train as plain ones; `before` may change both trainings.
void check_epochs(Training& plain, Training& recorded, const std::function<void(int epoch)>& before) {
  for (int epoch = 0; epoch < 4; ++epoch) {
    before(epoch);
    const float expected = plain.epoch();
    CAPTURE(epoch);
    CHECK(recorded.epoch(disturb) == expected);
    CHECK(same_values(recorded, plain));
  }
}

}  // namespace

DUET_CUDA_TEST("cuda: recorded steps train the very bits of plain ones") {
  Training plain(cnn(), 11, 4, false), recorded(cnn(), 11, 4, true);  // the last batch has 3 rows
  check_epochs(plain, recorded, [&](int epoch) {
    for (Training* training : {&plain, &recorded})
      if (epoch == 2) training->optimizer().set_lr(0.02f);
  });
  // Two shapes, two learning rates; the first step of each shape is plain, and the second of all.
  CHECK(recorded.graph().recordings() == 4);
  CHECK(recorded.graph().replays() == 9);
}

DUET_CUDA_TEST("cuda: several steps of one graph train the very bits of plain ones") {
  Training plain(cnn(), 19, 4, false), recorded(cnn(), 19, 4, true);  // four batches, and one of 3 rows
  check_epochs(plain, recorded, [&](int epoch) { recorded.set_several(epoch < 3 ? 3 : 2); });
  CHECK(recorded.graph().recordings() == 4);
  CHECK(recorded.graph().replays() == 15);
}

DUET_CUDA_TEST("cuda: a resumed training sets the steps of its graphs") {
  Training plain(cnn(), 8, 4, false), recorded(cnn(), 8, 4, true);
  for (Training* training : {&plain, &recorded}) {
    training->epoch();
    training->loader().set_position({7, 1});
    training->epoch();
    training->epoch();
  }
  CHECK(recorded.graph().replays() == 3);
  CHECK(same_values(recorded, plain));
}

DUET_CUDA_TEST("cuda: batch norms count the batches of recorded steps") {
  auto model = std::make_unique<NormNet<nn::BatchNorm2d>>(7), other = std::make_unique<NormNet<nn::BatchNorm2d>>(7);
  nn::Module &of_plain = *model, &of_recorded = *other;
  Training plain(std::move(model), 12, 4, false), recorded(std::move(other), 12, 4, true);
  for (int epoch = 0; epoch < 3; ++epoch) {
    plain.epoch();
    recorded.epoch();
  }
  CHECK(recorded.graph().replays() > 0);
  for (nn::Module* net : {&of_plain, &of_recorded}) {
    const nn::NamedTensor count = net->state_dict()[6];
    CHECK(count.name == "norm.num_batches_tracked");
    CHECK(*count.tensor.to(Device{}).data<std::int64_t>() == 9);
  }
  CHECK(same_values(recorded, plain));
}

DUET_CUDA_TEST("cuda: a replay draws dropout for its own step") {
  Backend& cuda = backend(DeviceKind::cuda);
  StepRecorder& recorder = *cuda.recorder(kGpu);
  const auto mask_of = [&](const Tensor& mask, std::uint64_t step) {
    cuda.dropout_mask(mask, {.seed = 9, .step = step, .layer = 2, .p = 0.5f});
  };
  const Tensor mask = empty({5, 40}, DType::u8, kGpu), other = empty({5, 40}, DType::u8, kGpu);
  recorder.begin(5);
  mask_of(mask, 5);
  mask_of(other, 6);  // a key that is one step ahead stays so
  const int recording = recorder.end();
  for (const std::uint64_t step : {std::uint64_t{5}, std::uint64_t{6}, std::uint64_t{40}, std::uint64_t{3}}) {
    recorder.replay(recording, step);
    const Tensor expected = empty({5, 40}, DType::u8, kGpu), ahead = empty({5, 40}, DType::u8, kGpu);
    mask_of(expected, step);
    mask_of(ahead, step + 1);
    CAPTURE(step);
    CHECK(bytes_of(mask) == bytes_of(expected));
    CHECK(bytes_of(other) == bytes_of(ahead));
  }
  recorder.drop(recording);
  CHECK_THROWS_WITH(recorder.replay(recording, 1), ContainsSubstring("has no recording"));
}

DUET_CUDA_TEST("cuda: replays leave memory alone that other threads allocate during the recording") {
  Backend& cuda = backend(DeviceKind::cuda);
  StepRecorder& recorder = *cuda.recorder(kGpu);
  const std::size_t used = cuda.use(kGpu).used;
  Tensor others;
  const auto temporary = [&] {
    const Tensor x = empty({1000}, DType::f32, kGpu);
    cuda.fill(x, 5);
  };
  recorder.begin(0);
  temporary();  // the recording may use this block again
  std::thread([&] {
    others = empty({1000}, DType::f32, kGpu);
    const Tensor passing = empty({1000}, DType::f32, kGpu);
  }).join();
  temporary();
  const int recording = recorder.end();
  cuda.fill(others, 1);
  for (std::uint64_t step = 0; step < 3; ++step) recorder.replay(recording, step);
  CHECK(as_array(others).values == std::vector<double>(1000, 1));
  others = Tensor();
  recorder.drop(recording);
  CHECK(cuda.use(kGpu).used == used);
}

DUET_CUDA_TEST("cuda: branches of a recorded step do not share memory") {
  Backend& cuda = backend(DeviceKind::cuda);
  const WithPrecision set(Precision::bf16);
  Mt19937 generator(161);
  // The copies in bfloat16 of x, for the weights' gradient, and of w, for that of x, are equally large.
  const Array x = random_array({64, 80}, generator), w = random_array({64, 80}, generator),
              dy = random_array({64, 64}, generator);
  const Tensor tx = on_gpu(x), tw = on_gpu(w), tdy = on_gpu(dy);
  const auto room = [&] { return empty(x.shape, DType::f32, kGpu); };
  const Tensor plain_dx = room(), plain_dw = room(), dx = room(), dw = room();
  cuda.linear_backward(tdy, tx, tw, plain_dx, plain_dw, {});
  StepRecorder& recorder = *cuda.recorder(kGpu);
  recorder.begin(0);
  cuda.linear_backward(tdy, tx, tw, dx, dw, {});
  const int recording = recorder.end();
  for (std::uint64_t step = 0; step < 4; ++step) {
    cuda.fill(dx, NAN);
    cuda.fill(dw, NAN);
    recorder.replay(recording, step);
    CHECK(as_array(dx).values == as_array(plain_dx).values);
    CHECK(as_array(dw).values == as_array(plain_dw).values);
  }
  recorder.drop(recording);
}

DUET_CUDA_TEST("cuda: what cannot be recorded leaves the device as it was") {
  Backend& cuda = backend(DeviceKind::cuda);
  const auto read_back = [](const Tensor& loss) { loss.to(Device{}); };
  const auto bring = [](const Tensor& loss) { zeros({1}).to(loss.device()); };
  const auto wait = [&](const Tensor&) { cuda.synchronize(kGpu); };
  const auto fail = [](const Tensor&) { throw DataError("the step's own failure"); };
  const auto record = [&](const Tensor&) { cuda.recorder(kGpu)->begin(0); };
  struct Case {
    std::function<void(const Tensor&)> spoil;
    const char* message;
  };
  const Case cases[] = {{read_back, "a copy to the host on cuda:0 cannot be part of a recorded step"},
                        {bring, "a copy from the host on cuda:0 cannot be part of a recorded step"},
                        {wait, "cuda: synchronize: "},
                        {fail, "the step's own failure"},
                        {record, "cuda:0 is recording a step already"}};
  Training plain(linear(), 12, 4, false), recorded(linear(), 12, 4, true);
  const Case* next = std::begin(cases);
  for (int epoch = 0; epoch < 4; ++epoch) {
    plain.epoch();
    for (auto at = recorded.loader().begin(); at != recorded.loader().end(); ++at) {
      const bool plain_run = recorded.loader().stamp().step < 2;
      recorded.loader().stage(1);
      if (!plain_run && next != std::end(cases)) {
        CAPTURE(next->message);
        const auto spoilt = [&] {
          const Tensor loss = recorded.step();
          next->spoil(loss);
          return loss;
        };
        // From now on the key is to be recorded: its steps must have had no effect.
        CHECK_THROWS_WITH(recorded.graph().run(recorded.key(), spoilt), ContainsSubstring(next->message));
        ++next;
      }
      if (next != std::end(cases) && !plain_run) {
        recorded.step();  // not recorded, on the same device
      } else {
        recorded.graph().run(recorded.key(), [&] { return recorded.step(); });
      }
    }
    CHECK(same_values(recorded, plain));
  }
  CHECK(recorded.graph().recordings() == 1);
  CHECK(recorded.graph().replays() > 0);
}

DUET_CUDA_TEST("cuda: a label out of bounds is reported when a replay's loss is read") {
  const Tensor x = zeros({2, 3}, DType::f32, kGpu), labels = label_tensor({0, 2}).to(kGpu);
  const auto loss = [&] { return ops::nll_loss(Variable(x), labels).value(); };
  StepGraph graph(kGpu);
  for (std::int64_t step = 0; step < 4; ++step) graph.run({.rows = 2, .stamp = {step, 0, 2}}, loss);
  CHECK(graph.take_loss_sum() == 0);
  copy(label_tensor({0, 3}), labels);
  graph.run({.rows = 2, .stamp = {4, 0, 2}}, loss);
  CHECK_THROWS_WITH(graph.take_loss_sum(), ContainsSubstring("Target 3 is out of bounds"));
  copy(label_tensor({1, 0}), labels);
  graph.run({.rows = 2, .stamp = {5, 0, 2}}, loss);
  CHECK(graph.take_loss_sum() == 0);
  CHECK(graph.replays() == 4);
}

DUET_CUDA_TEST("cuda: a hundred replayed steps end with the bits of plain ones, a thousand take no memory") {
  Backend& cuda = backend(DeviceKind::cuda);
  const bool simulated = cuda.describe(kGpu).find("simulated") != std::string::npos;  // and therefore slow
  Training plain(simulated ? linear() : cnn(), 32, 4, false), recorded(simulated ? linear() : cnn(), 32, 4, true);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (Training* training : {&plain, &recorded}) training->epoch();
    CHECK(same_values(recorded, plain));  // takes memory, too
  }
  const std::size_t held = cuda.use(kGpu).held;
  for (int epoch = 0; epoch < (simulated ? 4 : 125); ++epoch) {
    for (Training* training : {&plain, &recorded}) training->epoch();
    if (epoch % 12 == 0) CHECK(same_values(recorded, plain));
  }
  CHECK(cuda.use(kGpu).held == held);
  CHECK(recorded.graph().recordings() == 1);
  CHECK(same_values(recorded, plain));
}

DUET_CUDA_TEST("cuda: few recordings are kept, and dropped ones free their memory") {
  Backend& cuda = backend(DeviceKind::cuda);
  Training plain(linear(), 16, 4, false), recorded(linear(), 16, 4, true);
  std::size_t held = 0;
  for (int i = 0; i < 20; ++i) {
    for (Training* training : {&plain, &recorded}) {
      training->optimizer().set_lr(0.05f + 0.001f * static_cast<float>(i));
      training->epoch();
    }
    if (i == 9) held = cuda.use(kGpu).held;
  }
  CHECK(cuda.use(kGpu).held == held);
  CHECK(recorded.graph().recordings() == 20);
  CHECK(same_values(recorded, plain));
}

DUET_CUDA_TEST("cuda: a precision of its own, batches without a stamp, and invalid losses") {
  Training recorded(linear(), 8, 4, true);
  for (int epoch = 0; epoch < 2; ++epoch) recorded.epoch();
  CHECK(recorded.graph().recordings() == 1);
  {
    const WithPrecision set(Precision::bf16);
    recorded.epoch();
  }
  CHECK(recorded.graph().recordings() == 2);
  StepGraph graph(kGpu);
  CHECK_THROWS_WITH(graph.run({.rows = 4}, [] { return Tensor(); }), ContainsSubstring("needs a stamp"));
  const StepKey key = {.rows = 1, .stamp = {0, 0, 1}};
  CHECK_THROWS_WITH(graph.run(key, [] { return Tensor(); }), "a step must return its loss, one f32");
  const auto several = [](std::int64_t) { return Tensor(); };
  CHECK_THROWS_WITH(graph.run_several({.rows = 1, .stamp = {0, 0, 1}, .steps = 0}, several),
                    ContainsSubstring("got 0"));
  CHECK_THROWS_WITH(recorded.loader().stage(3), "cannot stage 3 steps: 1 are alike");
  CHECK_THROWS_WITH(recorded.loader().batch(1), "batch 1 ahead, but 0 steps are staged");
}

TEST_CASE("steps on a CPU are not recorded") {
  CHECK(backend(DeviceKind::cpu).recorder({}) == nullptr);
  CHECK_THROWS_WITH(StepGraph(Device{}), "steps on cpu:0 cannot be recorded as a graph");
}
