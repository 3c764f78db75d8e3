// Whole training steps of SimpleCNN, dropout on: own kernels against oneDNN's path and against loops in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/backend/simple_cnn_64.h"
#include "tests/benchmarks/bare_step.h"
#include "tests/support/catch2.h"
#include "tests/support/difference.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr std::int64_t kRows = 10;  // of a batch: blocks of one and of two rows
constexpr std::uint64_t kSeed = 1234;
constexpr SGDRule kRule = {.lr = 0.05f, .momentum = 0.5f};

struct StepBatch {
  Tensor images = empty({kRows, 1, 28, 28}), labels = empty({kRows}, DType::i64);
  StepInput input;
};

std::vector<std::uint8_t> kept(const Shape& shape, std::uint32_t layer, float p, std::int64_t step) {
  Tensor mask = empty(shape, DType::u8);
  mask.set_stamp({step, 0, kRows});
  backend(mask).dropout_mask(mask, {.seed = kSeed, .step = static_cast<std::uint64_t>(step), .layer = layer, .p = p});
  return {mask.span<std::uint8_t>().begin(), mask.span<std::uint8_t>().end()};
}

std::vector<std::int64_t> samples_of(std::int64_t step) {
  std::vector<std::int64_t> samples(kRows);
  std::iota(samples.begin(), samples.end(), step * kRows);
  return samples;
}

StepBatch batch_of(const data::ImageDataset& set, std::int64_t step) {
  StepBatch batch;
  set.fetch(samples_of(step), batch.images, batch.labels);
  batch.images.set_stamp({step, 0, kRows});
  batch.labels.set_stamp({step, 0, kRows});
  batch.input.images.assign(batch.images.span<float>().begin(), batch.images.span<float>().end());
  batch.input.labels.assign(batch.labels.span<std::int64_t>().begin(), batch.labels.span<std::int64_t>().end());
  batch.input.keep1 = kept({kRows, 64, 7, 7}, 3, 0.25f, step);
  batch.input.keep2 = kept({kRows, 128}, 4, 0.5f, step);
  return batch;
}

struct Trained {
  explicit Trained(bool fused) {
    model.context().fuse = fused;
    model.context().seed = kSeed;
  }
  double step(const StepBatch& batch) {
    opt.zero_grad();
    const Variable loss = ops::nll_loss(model(batch.images), batch.labels);
    loss.backward();
    opt.step();
    return static_cast<double>(loss.item());
  }
  nn::SimpleCNN model{kSeed};
  optim::SGD opt{model, {.lr = kRule.lr, .momentum = kRule.momentum}};
};

/// An index tensor of any layout in the plain one.
Places plain_places(const Tensor& index) {
  const std::int64_t block = index.layout() == Layout::plain ? 1 : index.layout() == Layout::blocked8 ? 8 : 16;
  const std::int64_t channels = index.size(1), pixels = index.shape().count_from(2);
  Places places;
  for (std::int64_t n = 0; n < index.size(0); ++n)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p)
        places.push_back(
            index.data<std::uint8_t>()[((n * channels / block + c / block) * pixels + p) * block + c % block]);
  return places;
}

}  // namespace

TEST_CASE("the losses of 20 steps are within 1e-5 of oneDNN's path and of loops in double") {
  const data::ImageDataset set = data::draw_digits(1, 20 * kRows);
  Trained own(true), onednn(false);
  SimpleCNN64 exact(own.model.parameters());
  for (std::int64_t step = 0; step < 20; ++step) {
    const StepBatch batch = batch_of(set, step);
    const double loss = own.step(batch), other = onednn.step(batch), expected = exact.run(batch.input);
    exact.update(static_cast<double>(kRule.lr), static_cast<double>(kRule.momentum));
    CAPTURE(step, loss, other, expected);
    CHECK(std::abs(loss - expected) < 1e-5 * expected);
    CHECK(std::abs(other - expected) < 1e-5 * expected);
  }
}

TEST_CASE("gradients are within 1e-5 of loops in double that take the run's own maxima") {
  const data::ImageDataset set = data::draw_digits(2, 4 * kRows);
  nn::SimpleCNN model(kSeed);
  nn::FlatParameters& store = model.parameters();
  benchmarks::BareStep step(store, set, kRows, kSeed);
  for (std::int64_t number = 0; number < 4; ++number) {
    SimpleCNN64 exact(store);
    SGDRule rule = kRule;
    rule.first = number == 0;
    step.run(samples_of(number), number, rule);
    StepBatch batch = batch_of(set, number);
    batch.input.places1 = plain_places(step.first_places());
    batch.input.places2 = plain_places(step.second_places());
    exact.run(batch.input);
    for (int slot = 0; slot < store.slot_count(); ++slot) {
      const std::string& name = store.slots()[static_cast<std::size_t>(slot)].name;
      CAPTURE(number, name);
      CHECK(relative_difference(store.gradient(slot).span<float>(), exact.gradient(name)) < 1e-5);
    }
  }
}
