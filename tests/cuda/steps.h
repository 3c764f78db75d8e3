// Two training steps that every way of distributing them must agree on.
#pragma once

#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "tests/cuda/gpu.h"

namespace duet_test {

inline constexpr std::int64_t kRows = 8;

struct Batch {
  duet::Tensor images, labels;
};

inline Batch make_batch(std::int64_t step) {
  duet::Mt19937 generator(static_cast<std::uint64_t>(step) + 5);
  Batch batch = {duet::empty({kRows, 1, 28, 28}), duet::empty({kRows}, duet::DType::i64)};
  generator.uniform(batch.images.span<float>(), -1.0, 1.0);
  for (std::int64_t& label : batch.labels.span<std::int64_t>()) label = generator.randint(0, 10);
  batch.images.set_stamp({step, 0, kRows});
  batch.labels.set_stamp({step, 0, kRows});
  return batch;
}

/// Two steps on this rank's rows, dropout on; returns all parameters.
inline Array train(duet::nn::Module& model, duet::nn::Module& net, int rank, int size) {
  duet::optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  const duet::Device device = model.parameters().device();
  for (std::int64_t step = 0; step < 2; ++step) {
    const Batch batch = make_batch(step);
    const std::int64_t begin = kRows * rank / size, end = kRows * (rank + 1) / size;
    opt.zero_grad();
    const duet::Variable images = batch.images.rows(begin, end).to(device);
    duet::ops::nll_loss(net(images), batch.labels.rows(begin, end).to(device)).backward();
    opt.step();
  }
  return as_array(model.parameters().values());
}

}  // namespace duet_test
