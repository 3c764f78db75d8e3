// Gradients of SimpleCNN on whole batches and in shards, and comparison of their bits.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/nn/simple_cnn.h"
#include "tests/support/batch.h"

namespace duet_test {

/// Images and labels at random, stamped as step 3.
Batch random_batch(std::int64_t rows, std::uint64_t seed);
/// The flat gradient of the loss of `batch`, in memory of its own; zeros for a batch without rows.
duet::Tensor gradient_of(duet::nn::SimpleCNN& model, const Batch& batch);
/// The same from consecutive shards, summed as devices do.
duet::Tensor gradient_in_shards(duet::nn::SimpleCNN& model, const Batch& batch, int shards);

bool same_bits(const duet::Tensor& a, const duet::Tensor& b);

/// The kernels of each instruction set that this machine has, AMX left out.
std::vector<const duet::cpu::Kernels*> instruction_sets();

}  // namespace duet_test
