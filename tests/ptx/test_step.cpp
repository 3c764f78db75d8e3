// Counts of duet's own kernels in a training step of SimpleCNN in TF32; test_ptx "[step]" prints them. cuBLAS's GEMMs
// are no part of it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"
#include "tests/support/ptx/cudart.h"
#include "tests/support/ptx/interpreter.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

/// Arrays of the step's tensors, for a batch of n.
struct StepCase : Case {
  explicit StepCase(std::int64_t n) : Case("step", {n}), rows(n), count(size_of(n)) {
    draw_of_step = draw(true, 16384);
    labels = input<std::int64_t>("labels", 60, 0, [&](std::size_t) { return static_cast<std::int64_t>(below(10)); });
    indices =
        input<std::int64_t>("indices", count, 0, [&](std::size_t) { return static_cast<std::int64_t>(below(60)); });
    bytes =
        input<std::uint8_t>("bytes", 60 * 784, 0, [&](std::size_t) { return static_cast<std::uint8_t>(below(256)); });
  }
  Floats values(const char* name, std::size_t each) { return normal(name, count * each); }

  std::int64_t rows;
  std::size_t count;
  kernels::StepDraw draw_of_step;
  Array<std::int64_t> labels, indices, picked = output<std::int64_t>("picked", count);
  Array<std::uint8_t> bytes;
  Array<std::uint8_t> places1 = places("places", count * 32 * 196, 4), places2 = places("places", count * 64 * 49, 4);
  Array<std::uint64_t> counter = input<std::uint64_t>("counter", 1, 0, [](std::size_t) { return 0; });
  Array<kernels::LabelFault> fault =
      input<kernels::LabelFault>("fault", 1, 0, [](std::size_t) { return kernels::LabelFault{}; });
  Floats images = values("images", 784), w1 = normal("w", 288), b1 = normal("b", 32),
         y1 = output("y", count * 32 * 196);
  Floats w2 = normal("w", 64 * 32 * 9), b2 = normal("b", 64), y2 = output("y", count * 64 * 49);
  Floats hidden = values("hidden", 128), b3 = normal("b", 128), w4 = normal("w", 1280), b4 = normal("b", 10);
  Floats logits = output("y", count * 10), loss = output("loss", 1), dlogits = output("dx", count * 10);
  Floats dhidden = output("dx", count * 128), dw4 = output("dw", 1280), db4 = output("db", 10),
         dy3 = output("dx", count * 128);
  Floats db3 = output("db", 128), dy2 = values("dy", 64 * 49), dw2 = output("dw", 64 * 32 * 9), db2 = output("db", 64);
  Floats dy1 = output("dx", count * 32 * 196), partials = output("partials", 64 * 64 * 32 * 9), dw1 = output("dw", 288),
         db1 = output("db", 32);
  Floats parameters = normal("value", 421642), gradients = normal("gradient", 421642),
         momenta = normal("momentum", 421642);
  Floats total = constant("total", 0);
};

/// Runs a part of the step and prints what it took.
void part(const char* name, const std::function<void()>& work) {
  const duet_ptx::Statistics before = duet_ptx::device().statistics;
  work();
  const duet_ptx::Statistics& after = duet_ptx::device().statistics;
  std::printf("%-32s %llu launches %6llu blocks %8.2f million instructions %6.2f MB\n", name,
              static_cast<unsigned long long>(after.launches - before.launches),
              static_cast<unsigned long long>(after.blocks - before.blocks),
              static_cast<double>(after.instructions - before.instructions) / 1e6,
              static_cast<double>(after.global_bytes - before.global_bytes) / 1e6);
}

void forward(StepCase& s) {
  const kernels::OneChannelConv conv1{static_cast<int>(s.rows), 32, 28, 28, 1, 1, 14, 14, false};
  const kernels::Conv3x3 conv2{static_cast<int>(s.rows), 32, 64, 14, 14, 1, 1, false};
  const kernels::SmallLinear fc2{s.rows, 128, 10, false};
  const float share = 1.0f / static_cast<float>(s.rows);
  part("gather", [&] {
    kernels::gather_images({s.bytes.data(), 784, s.labels.data()}, s.indices.data(), s.rows, 0.13f, 0.3f,
                           s.images.data(), s.picked.data(), nullptr);
  });
  part("conv1, pool, relu", [&] {
    kernels::conv_one_channel_forward(s.images.data(), s.w1.data(), s.b1.data(), s.y1.data(), s.places1.data(), conv1,
                                      nullptr);
  });
  part("conv2, pool, relu, dropout", [&] {
    kernels::conv3x3_pool_forward(s.y1.data(), s.w2.data(), s.b2.data(), s.y2.data(), s.places2.data(), &s.draw_of_step,
                                  1.333f, conv2, nullptr);
  });
  part("bias, relu, dropout of fc1", [&] {
    kernels::bias_relu_dropout_forward(s.hidden.data(), s.b3.data(), s.rows, 128, &s.draw_of_step, 2.0f, nullptr);
  });
  part("fc2 and log_softmax", [&] {
    kernels::small_linear_forward(s.hidden.data(), s.w4.data(), s.b4.data(), s.logits.data(), true, fc2, nullptr);
  });
  part("nll and its gradient", [&] {
    kernels::nll_forward(s.logits.data(), s.picked.data(), share, s.loss.data(), {s.dlogits.data(), share}, s.rows, 10,
                         s.fault.data(), nullptr);
  });
}

void backward(StepCase& s) {
  const kernels::OneChannelConv conv1{static_cast<int>(s.rows), 32, 28, 28, 1, 1, 14, 14, false};
  const kernels::Conv3x3 conv2{static_cast<int>(s.rows), 32, 64, 14, 14, 1, 1, false};
  const kernels::SmallLinear fc2{s.rows, 128, 10, false};
  part("fc2 backward", [&] {
    kernels::small_linear_backward(s.dlogits.data(), s.hidden.data(), s.w4.data(), s.dhidden.data(), s.dw4.data(),
                                   s.db4.data(), fc2, nullptr);
  });
  part("relu, dropout of fc1 backward", [&] {
    kernels::bias_relu_dropout_backward(s.dhidden.data(), s.hidden.data(), 2.0f, s.dy3.data(), s.db3.data(), s.rows,
                                        128, nullptr);
  });
  const kernels::ConvImage dimage2{s.dy2.data(), s.places2.data(), 1.333f};
  part("conv2, pool, relu, dropout backward", [&] {
    const kernels::Conv3x3 back{static_cast<int>(s.rows), 64, 32, 14, 14, 1, 1, false};
    kernels::conv3x3_weights(s.y1.data(), dimage2, s.partials.data(), s.dw2.data(), conv2, nullptr);
    kernels::conv3x3(dimage2, s.w2.data(), true, s.dy1.data(), back, nullptr);
  });
  part("bias gradient of conv2", [&] {
    kernels::channel_bias_gradient(s.dy2.data(), s.places2.data(), 1.333f, s.db2.data(), s.rows, 64, 49, nullptr);
  });
  part("conv1 backward", [&] {
    kernels::conv_one_channel_backward(s.dy1.data(), s.places1.data(), s.images.data(), s.partials.data(), s.dw1.data(),
                                       s.db1.data(), conv1, nullptr);
  });
  part("sgd", [&] {
    kernels::sgd(s.parameters.data(), s.gradients.data(), s.momenta.data(),
                 static_cast<std::int64_t>(s.parameters.size()), {0.01f, 0.5f, 0, 0, false, false}, nullptr);
  });
  part("sum of losses", [&] { kernels::add(s.total.data(), s.loss.data(), s.total.data(), 1, nullptr); });
  part("counter", [&] { kernels::advance(s.counter.data(), 1, nullptr); });
}

}  // namespace

TEST_CASE("ptx: counts of a training step of SimpleCNN at batch 128", "[.step]") {
  StepCase s(128);
  s.run([&] {
    part("the step", [&] {
      forward(s);
      backward(s);
    });
  });
}
