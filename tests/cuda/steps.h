// Two training steps that every way of distributing them must agree on.
#pragma once

#include <cstdint>

#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/cuda/gpu.h"
#include "tests/support/batch.h"

namespace duet_test {

inline constexpr std::int64_t kRows = 8;

/// Two steps on this rank's rows, dropout on; returns all parameters.
inline Array train(duet::nn::Module& model, duet::nn::Module& net, int rank, int size) {
  duet::optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  const duet::Device device = model.parameters().device();
  for (std::int64_t step = 0; step < 2; ++step) {
    const Batch batch = make_batch(kRows, step).rows(kRows * rank / size, kRows * (rank + 1) / size).to(device);
    opt.zero_grad();
    duet::ops::nll_loss(net(batch.images), batch.labels).backward();
    opt.step();
  }
  return as_array(model.parameters().values());
}

}  // namespace duet_test
