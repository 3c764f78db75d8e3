// The little training that tests of DDP compare, in the test and in its worker processes.
#pragma once

#include <string>

#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "lib/sha256.h"

namespace duet_test {

inline constexpr std::uint64_t kSeed = 7;

struct Batch {
  duet::Tensor images, labels;
};

/// One global batch, stamped as the loader does it.
inline Batch make_batch(std::int64_t rows, std::int64_t step) {
  duet::Mt19937 generator(static_cast<std::uint64_t>(step) + 99);
  Batch batch = {duet::empty({rows, 1, 28, 28}), duet::empty({rows}, duet::DType::i64)};
  generator.uniform(batch.images.span<float>(), -1.0, 1.0);
  for (std::int64_t& label : batch.labels.span<std::int64_t>()) label = generator.randint(0, 10);
  batch.images.set_stamp({step, 0, rows});
  batch.labels.set_stamp({step, 0, rows});
  return batch;
}

inline Batch shard(const Batch& batch, int rank, int size) {
  const std::int64_t rows = batch.images.size(0);
  const auto begin = duet::block_begin(rank, rows, size), end = duet::block_begin(rank + 1, rows, size);
  return {batch.images.rows(begin, end), batch.labels.rows(begin, end)};
}

/// Three steps; `net` is the model or a wrapper of it.
inline void train(duet::nn::Module& model, duet::nn::Module& net, std::int64_t rows, int rank, int size) {
  model.context().seed = kSeed;
  duet::optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = shard(make_batch(rows, step), rank, size);
    opt.zero_grad();
    const duet::Variable loss = duet::ops::nll_loss(net(batch.images), batch.labels);
    loss.backward();
    opt.step();
  }
}

inline std::string fingerprint(duet::nn::Module& model) {
  const duet::Tensor values = model.parameters().values();
  return duet::sha256_hex({static_cast<const std::byte*>(values.raw()), values.bytes()});
}

}  // namespace duet_test
