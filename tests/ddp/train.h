// The little training that tests of DDP compare, in the test and in its worker processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/tensor.h"
#include "tests/support/batch.h"

namespace duet_test {

inline constexpr std::uint64_t kSeed = 7;

/// As a sampler divides the batch.
inline Batch shard(const Batch& batch, int rank, int size) {
  const std::int64_t rows = batch.images.size(0);
  Batch part = batch.rows(duet::block_begin(rank, rows, size), duet::block_begin(rank + 1, rows, size));
  for (duet::Tensor* const tensor : {&part.images, &part.labels}) {
    duet::Rows stamp = tensor->stamp();
    if (stamp.stamped()) stamp.shards = size;
    tensor->set_stamp(stamp);
  }
  return part;
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

/// Hash of all parameters, buffers and gradients.
inline std::string state_of(duet::nn::Module& model) {
  std::string text = duet::sha256_hex(std::as_bytes(model.parameters().gradients().span<float>()));
  for (const auto& [name, tensor] : model.state_dict())
    text +=
        duet::concat(" ", name, " ", duet::sha256_hex({static_cast<const std::byte*>(tensor.raw()), tensor.bytes()}));
  return text;
}

}  // namespace duet_test
