// A whole training step of SimpleCNN on a GPU against the same step on the CPU.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Loss and flat gradient of one step on `device`, with the model's own values.
struct Step {
  Step(nn::SimpleCNN& net, const Tensor& images, const std::vector<std::int64_t>& labels, Device device,
       bool fused = true)
      : store(net.parameters().slots(), {}, device) {
    store.set_model_id(net.parameters().model_id());
    copy(net.parameters().values(), store.values());
    nn::Context context = {.store = &store, .seed = 77, .fuse = fused};
    Tensor input = images.to(device);
    input.set_stamp(images.stamp());
    const Variable out = net.forward(context, Variable(input));
    const Variable mean = ops::nll_loss(out, label_tensor(labels).to(device));
    mean.backward();
    loss = static_cast<double>(mean.item());
    log_probabilities = as_array(out.value());
  }
  nn::FlatParameters store;
  double loss = 0;
  Array log_probabilities;
};

}  // namespace

DUET_CUDA_TEST("cuda: a step of SimpleCNN has the CPU's loss and gradients, fused and one by one") {
  Mt19937 generator(131);
  nn::SimpleCNN net(1);
  for (const std::int64_t rows : {1, 3}) {
    Tensor images = to_tensor(random_array({rows, 1, 28, 28}, generator));
    images.set_stamp({12, 8, 64});  // a shard: its rows decide the dropout
    const std::vector<std::int64_t> labels = random_labels(rows, 10, generator);
    const Step cpu(net, images, labels, Device{});
    for (const bool fused : {true, false}) {
      const Step gpu(net, images, labels, kGpu, fused);
      CAPTURE(rows, fused);
      CHECK(std::abs(gpu.loss - cpu.loss) < kTolerance * std::abs(cpu.loss));
      for (int slot = 0; slot < gpu.store.slot_count(); ++slot) {
        CAPTURE(gpu.store.slots()[static_cast<std::size_t>(slot)].name);
        CHECK(gpu_error(gpu.store.gradient(slot), as_array(cpu.store.gradient(slot))) < kTolerance);
      }
    }
  }
}

DUET_CUDA_TEST("cuda: SimpleCNN's log-probabilities stay near the CPU's in every precision") {
  Mt19937 generator(132);
  nn::SimpleCNN net(2);
  const Tensor images = to_tensor(random_array({2, 1, 28, 28}, generator));
  const std::vector<std::int64_t> labels = random_labels(2, 10, generator);
  const Step cpu(net, images, labels, Device{});
  for (const Precision precision : kPrecisions) {
    const WithPrecision set(precision);
    const Step gpu(net, images, labels, kGpu);
    CAPTURE(name(precision));
    CHECK(relative_error(to_tensor(gpu.log_probabilities), cpu.log_probabilities) < tolerance(precision));
  }
}
